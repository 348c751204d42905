"""Any parameters and seeds, for hypothesis."""

from hypothesis import strategies as st

from llm_engine.config import SamplingParams
from tests.support.llm.sampling_cases import NEARLY_ONE, VOCAB

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40, VOCAB, 1000]),
    top_p=st.sampled_from([1e-60, 0.01, 0.5, 0.9, NEARLY_ONE, 1.0]),
    min_p=st.sampled_from([0.0, 1e-60, 0.05, 0.5]),
)
SEEDS = st.integers(0, (1 << 63) - 1)
