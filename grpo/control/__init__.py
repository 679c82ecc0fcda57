"""Entropy recovery, adaptive coefficients, alarms, stop rules: pure state machines."""
