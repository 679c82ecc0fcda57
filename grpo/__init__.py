"""The learning library: boards, move values, policies, training, games. It knows neither tracker nor orchestrator."""
