/** Names of the stages of a turn on all pages, in their order. */

/** Budget from the caller's last word to the agent's first audible sample. */
export const BUDGET_MS = 500;

/** @type {Record<string, string>} */
export const STAGE_NAMES = {
  capture: 'Microphone',
  endpoint: 'End of turn',
  asr: 'Recognition',
  llm_prefill: 'Reading',
  llm_clause: 'First words',
  tool: 'Tool',
  tts: 'Voice',
  pacing: 'Pacing',
  transport: 'Network',
};
