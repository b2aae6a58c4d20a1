"""World-model agents behind one contract, and how they get here: conversion from PyTorch and the zoo."""
