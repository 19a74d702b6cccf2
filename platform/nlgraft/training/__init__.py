"""How weights are learned: data, objectives, schedules, the loop, and what is carried between stages."""
