#!/usr/bin/env bash
# Notes on the system that this one replaces grep for these lines after an update; each must print something.
set -e
grep -n "env: TradingEnvironment" training/erl_trainer.py
grep -n "self.eval_env" training/erl_trainer.py
grep -n "start_idx: Optional" environment/trading_env.py
grep -A 2 "env=self.eval_env" training/erl_trainer.py
