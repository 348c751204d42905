/** The stages of a turn, in the order in which they follow each other, as every page calls them. */

/** From the caller's last word to the agent's first sound. */
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
