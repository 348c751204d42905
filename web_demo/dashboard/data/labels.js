/** What marks and actions mean, for whoever looks at a turn. */

/** By the names in traces; see `latency_budget/account/marks.py`. @type {Record<string, string>} */
export const MARKS = {
  speech_started: 'The detector heard the caller begin',
  caller_last_voiced: 'The caller’s last voiced sound',
  audio_received: 'The server had received that sound',
  speech_paused: 'The voice detector saw the pause',
  asr_start: 'The last pass over the words began',
  asr_final: 'The words were final',
  asked: 'The client ended the turn, or asked for the reply',
  endpoint: 'The turn was decided over',
  greeting: 'Given words were spoken; nobody had asked',
  reply_requested: 'The language model was asked',
  llm_first_token: 'The language model’s first token',
  first_piece: 'The first piece worth speaking was cut',
  tts_start: 'The voice began to work',
  tts_first_chunk: 'The first synthesized samples, perhaps silent',
  first_audible_ready: 'The first audible sound could have been sent',
  pace_start: 'From here on the reply was held back on purpose',
  pace_end: 'It was let go',
  opener: 'The reply was late: words kept at hand were said in front of it',
  released: 'The first audible sound was sent',
  heard: 'The client played that sound, by its reports',
  heard_doubted: 'The client’s reports can’t be true',
  reply_done: 'The last sound of the reply was sent',
  interrupted: 'The caller interrupted',
  reopened: 'The caller went on with the turn before',
  tool_start: 'A tool was called',
  tool_done: 'The tool had answered',
  discarded: 'Work done in advance was thrown away: the caller went on',
  llm_wasted: 'What the language model had computed for that',
  acted: 'Something was done lest the turn be late',
};

/** By the names in traces; see `latency_budget/actions.py`. @type {Record<string, string>} */
export const ACTIONS = {
  pause_sooner: 'A shorter silence counted as a pause, so that the reply was prepared sooner.',
  short_clause: 'The first piece of the reply ended after a few words.',
  tail_decode: 'The older part of a long utterance was recognized while it went on.',
  skip_partials: 'No partial transcripts, so that the recognizer was free at the pause.',
  opener: 'Words kept at hand were said in front of the reply.',
  small_model: 'A smaller model gave the reply.',
};
