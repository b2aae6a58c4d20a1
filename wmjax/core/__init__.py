"""The vocabulary every other floor speaks: distributions, layers, errors. Imports nothing of ours."""
