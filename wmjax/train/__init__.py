"""Training the four Dreamer-family agents, wholly on the device."""
