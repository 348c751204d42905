/** Descriptions of marks and actions. */

/**
 * Descriptions of marks, by their names in traces; see `latency_budget/account/marks.py`. @type
 * {Record<string, string>}
 */
export const MARKS = {
  speech_started: 'The voice detector heard speech begin',
  caller_last_voiced: 'The caller’s last voiced sound',
  audio_received: 'The server had received that sound',
  speech_paused: 'The voice detector saw the pause',
  asr_start: 'The last recognition pass began',
  asr_final: 'The transcript was final',
  asked: 'The client ended the turn, or asked for the reply',
  endpoint: 'The end of the turn was decided',
  greeting: 'A greeting or announcement was spoken',
  reply_requested: 'The language model was asked',
  llm_first_token: 'The language model’s first token',
  first_piece: 'The first clause for the voice was complete',
  tts_start: 'The voice began to synthesize',
  tts_first_chunk: 'The first synthesized samples, perhaps silent',
  first_audible_ready: 'The first audible sound could have been sent',
  pace_start: 'From here on the reply was held back on purpose',
  pace_end: 'The reply was released',
  opener: 'Prepared words were said before the reply',
  early_opener: 'They were said before it was certain that the caller was done',
  released: 'The first audible sound was sent',
  answer_audible: 'The answer began behind prepared words',
  heard: 'The client played that sound, by its reports',
  heard_doubted: 'The client’s playback reports are implausible',
  reply_done: 'The last sound of the reply was sent',
  interrupted: 'The caller interrupted',
  reopened: 'The caller went on with the turn before',
  cut_in: 'The caller, who had not finished, went on',
  withdrawn: 'The caller went on before the answer could be heard',
  tool_start: 'A tool was called',
  tool_done: 'The tool had answered',
  discarded: 'Work done in advance was thrown away: the caller went on',
  llm_condensed: 'The oldest turns were condensed to a summary',
  llm_wasted: 'What the language model had computed for that',
  acted: 'A measure was taken to keep the turn within budget',
};

/**
 * Descriptions of actions, by their names in traces; see `latency_budget/account/actions.py`. @type
 * {Record<string, string>}
 */
export const ACTIONS = {
  pause_sooner: 'A shorter silence counted as a pause, so that the reply was prepared sooner.',
  short_clause: 'The first piece of the reply ended after a few words.',
  tail_decode: 'The older part of a long utterance was recognized while it went on.',
  skip_partials: 'No partial transcripts, so that the recognizer was free at the pause.',
  opener: 'Prepared words were said before the reply.',
  small_model: 'A smaller model gave the reply.',
};
