#!/usr/bin/env bash
# What is looked for in main.log; each must print something.
set -e
grep "Initializing persistent evaluation environment" main.log
grep "Initializing persistent validation environment" main.log
grep -E "Generation [0-9]+ / 2$" main.log
grep "Evaluating agents" main.log
grep "Training agents" main.log
grep "Evolving population: 1 -> 2" main.log
grep -E "environments 2, agents 5, replay buffers 1" main.log
grep "Fitness .* mean .* max .* min .* std" main.log
grep -A 3 "memory trend" main.log
grep "Gen 2: After" main.log
grep "memory growth since 'Trainer initialized (baseline)'" main.log
grep "objects of 50 MB and more" main.log
# What is watched while it runs.
tail -n 1 main.log | grep .
grep -c "Generation" main.log
grep "Generation" main.log | tail -n 1 | grep "2 / 2"
grep "Memory" main.log | tail -n 1 | grep "environments 2"
grep "environments" main.log | tail -n 1
