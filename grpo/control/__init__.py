"""Training control: schedules, adaptive coefficients, entropy recovery, alarms and stop rules, as pure state machines."""
