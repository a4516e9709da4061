"""Forecasts of what orders earn: known results of all orders, and ridge regressions of them in closed form."""
