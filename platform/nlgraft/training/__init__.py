"""Training: data, objectives, schedules, the loop, and the transfer of weights between stages."""
