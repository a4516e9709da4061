# test_env_reuse.py
from data.loader import StockDataLoader
from environment.trading_env import TradingEnvironment
from utils.config import Config

# Load data
loader = StockDataLoader()
loader.load_and_prepare()

# Create one environment
env = TradingEnvironment(
    data_array=loader.data_array,
    dates=loader.dates,
    normalization_stats=loader.compute_normalization_stats(),
    start_idx=Config.CONTEXT_WINDOW_DAYS,
    end_idx=Config.CONTEXT_WINDOW_DAYS + 145,
    trading_end_idx=Config.CONTEXT_WINDOW_DAYS + 125,
)

print("Environment created once")

# Run 10 episodes with different indices
for i in range(10):
    start = Config.CONTEXT_WINDOW_DAYS + i * 100
    end = start + 145
    trading_end = start + 125

    state, info = env.reset(start_idx=start, end_idx=end, trading_end_idx=trading_end)
    print(f"Episode {i + 1}: Reset successful, shape={state.shape}")

print("ok: All 10 episodes completed with single environment")
