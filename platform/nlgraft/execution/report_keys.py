"""Keys of a trial's Tune config and results; imports nothing, since every worker process reads it."""

TRIAL_ID = "nlgraft_trial_id"

KEY = "nlgraft_key"
OUTCOME = "nlgraft_outcome"
OWNER = "nlgraft_owner"
REASON = "nlgraft_reason"
STACKS = "nlgraft_stacks"
STAGE = "nlgraft_stage"
STEP = "nlgraft_step"
METRICS = "nlgraft_metrics"
VALUE = "nlgraft_value"
UNIX_MS = "nlgraft_unix_ms"
