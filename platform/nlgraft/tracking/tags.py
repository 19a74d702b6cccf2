"""Names of the tags by which runs are found and distinguished in MLflow."""

from __future__ import annotations

FINGERPRINT = "nlgraft.fingerprint"
KIND = "nlgraft.kind"
DIGEST = "nlgraft.digest"
CELL = "nlgraft.cell"
STUDY = "nlgraft.study"
STUDY_FINGERPRINT = "nlgraft.study_fingerprint"
STORE = "nlgraft.store"
STATE = "nlgraft.state"
END_REASON = "nlgraft.end_reason"
REGISTRATION = "nlgraft.registration"
ANALYSES = "nlgraft.analyses"
NOTE = "mlflow.note.content"
VERDICT = "nlgraft.verdict"
MATTERED = "nlgraft.mattered"
