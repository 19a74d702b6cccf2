#!/bin/sh
# A toy in shell and awk: noisy gradient descent on a bowl. Usage: simulate.sh RATE SEED ITEMS
awk -v rate="$1" -v seed="$2" -f descend.awk "$3" > progress.jsonl
awk -v seed="$2" -v last="$(tail -n 1 progress.jsonl)" -f score.awk "$3" > items.csv
