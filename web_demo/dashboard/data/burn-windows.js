/** Alert windows in seconds, as in `latency_budget/monitoring/alerts.yml`. */

export const BURN_WINDOWS = { '5m': 300, '30m': 1800, '1h': 3600, '6h': 21_600 };
