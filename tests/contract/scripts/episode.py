# One episode by hand, and the numbers that it leaves in the environment.
from data.loader import StockDataLoader
from environment.trading_env import TradingEnvironment
from utils.config import Config
from utils.memory_profiler import get_profiler, log_memory, print_memory_growth

loader = StockDataLoader()
loader.load_and_prepare()
start = Config.CONTEXT_WINDOW_DAYS
env = TradingEnvironment(
    data_array=loader.data_array,
    dates=loader.dates,
    normalization_stats=loader.compute_normalization_stats(),
    start_idx=start,
    end_idx=start + Config.TRADING_PERIOD_DAYS + Config.SETTLEMENT_PERIOD_DAYS,
    trading_end_idx=start + Config.TRADING_PERIOD_DAYS,
)
log_memory("Trainer initialized (baseline)", show_objects=True)
state, info = env.reset()
done = False
while not done:
    state, reward, done, truncated, info = env.step(env.action_space.sample())
    assert all(isinstance(ticker, str) for ticker in env.open_positions)
summary = env.get_episode_summary()
print(f"Total reward: {env.cumulative_reward:.4f}")
print(f"Trades: {env.num_trades} (wins {env.num_wins}, losses {env.num_losses})")
print(f"Positions opened: {env.total_positions_opened}")
print(f"Days with positions: {env.days_with_positions}, without: {env.days_without_positions}")
assert env.num_trades == env.num_wins + env.num_losses == summary["trades"] > 0
assert env.total_positions_opened == summary["positions_opened"] >= env.num_trades
assert env.days_with_positions + env.days_without_positions == 145
assert abs(env.cumulative_reward - summary["profit_percent"]) < 1e-9 and env.open_positions == {}
log_memory("Gen 1: After evaluate_population", show_objects=True)
print_memory_growth("Trainer initialized (baseline)")
get_profiler().print_memory_growth(baseline_label="Trainer initialized (baseline)")
