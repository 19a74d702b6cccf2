"""What the tests of tracked runs share: reports of a study, and what MLflow holds of it."""

NESTED = "mlflow.parentRunId"
CELLS = ("baseline 20.50 ± 0.50", "arm=avg_eg 20.50 ± 0.50")


def runs_by_name(client, experiment="demo", view=1):
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id], "", view)
    named = {}
    for run in runs:
        assert run.info.run_name not in named, f"{run.info.run_name} is there twice"
        named[run.info.run_name] = run
    return named


def first_run(client):
    return runs_by_name(client)["baseline, seed 1"]


def snapshot(client, experiment="demo"):
    """Everything of every run that a second report must not change."""
    return {
        name: (
            run.info.run_id,
            run.info.status,
            run.info.end_time,
            sorted(run.data.params.items()),
            sorted(run.data.tags.items()),
            {
                key: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        )
        for name, run in runs_by_name(client, experiment).items()
    }


def run_study(tracker, toy, store, report):
    for trial in toy.trials:
        tracker.trial_started(trial)
        tracker.trial_metrics(trial, 10, {"train/loss": 2.5}, 1_000_010)
        toy.publish(store, trial)
        tracker.trial_ended(trial, toy.record(trial), store)
    report.mkdir(exist_ok=True)
    (report / "report.html").write_text("<p>")
    tracker.finish_study(toy.result(), "| cell | bleu |", report)


def end_trials(tracker, toy, store, **options):
    for trial in toy.trials:
        tracker.trial_ended(trial, toy.record(trial), store, **options)


def end_trial(tracker, toy, trial, **fields):
    tracker.trial_ended(trial, toy.record(trial, **fields))
    tracker.close()


def artifact_names(client, run, path=None):
    return {entry.path for entry in client.list_artifacts(run.info.run_id, path)}
