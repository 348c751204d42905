/**
 * Applies the user's preferences to the server's session, by standard `session.update`.
 *
 * Each setting is sent in its own update, because the server accepts an update as a whole or not at
 * all: a missing voice must not block the instructions. Only differences are sent: from the
 * server's session, and from what was sent last, which may be on its way, or lost with its
 * connection. So unchanged preferences send nothing, the last change counts however fast it follows
 * another, and after a renewed call everything is set again.
 *
 * Events: `refused` (detail: {field, message}) when the server rejects a setting, `accepted` when
 * it accepts one that it had rejected.
 */

/**
 * @typedef {import('./preferences.js').Preferences} Preferences
 * @typedef {import('./realtime-client.js').RealtimeEvent} RealtimeEvent
 * @typedef {'voice' | 'instructions' | 'turns'} Field
 *
 * @typedef {object} TurnDetection
 * @property {string} type
 * @property {string} [eagerness]
 * @property {number} [silence_duration_ms]
 *
 * @typedef {object} Session the parts of a session's JSON that can be set here
 * @property {string} [instructions]
 * @property {{input?: {turn_detection?: TurnDetection | null}, output?: {voice?: string}}} [audio]
 */

/** @type {readonly Field[]} */
const FIELDS = ['turns', 'voice', 'instructions'];

/** Prefix of the `event_id` of an update; field and number follow. */
const PREFIX = 'set';

/**
 * Difference between a preference and the session.
 * @param {Field} field
 * @param {Readonly<Preferences>} preferences
 * @param {Session} session current session
 * @param {Session} original session at the start of the call
 * @returns {Session | null} null: no difference
 */
export function difference(field, preferences, session, original) {
  if (field === 'instructions') {
    const instructions = preferences.instructions || original.instructions;
    return differs(instructions, session.instructions) ? { instructions } : null;
  }
  if (field === 'voice') {
    const voice = preferences.voice || original.audio?.output?.voice;
    return differs(voice, session.audio?.output?.voice) ? { audio: { output: { voice } } } : null;
  }
  const wanted = turnDetection(preferences);
  const now = session.audio?.input?.turn_detection;
  return isThere(wanted, now) ? null : { audio: { input: { turn_detection: wanted } } };
}

/**
 * @param {Readonly<Preferences>} preferences
 * @returns {TurnDetection | null} null: the client ends turns
 */
export function turnDetection({ turns, silenceMs }) {
  if (turns === 'hold') return null;
  if (turns === 'silence') return { type: 'server_vad', silence_duration_ms: silenceMs };
  return { type: 'semantic_vad', eagerness: turns };
}

/**
 * @param {unknown} wanted
 * @param {unknown} now
 */
function differs(wanted, now) {
  return wanted !== undefined && wanted !== now;
}

/**
 * @param {TurnDetection | null} wanted
 * @param {TurnDetection | null | undefined} now undefined: the server does not report it and uses
 *   its default
 */
function isThere(wanted, now) {
  const there = now === undefined ? { type: 'semantic_vad', eagerness: 'auto' } : now;
  if (wanted === null || there === null) return wanted === there;
  return Object.entries(wanted).every(
    ([name, value]) => there[/** @type {keyof TurnDetection} */ (name)] === value,
  );
}

export class SessionSettings extends EventTarget {
  /**
   * @param {import('./realtime-client.js').RealtimeClient} client
   * @param {import('./preferences.js').PreferenceStore} preferences
   */
  constructor(client, preferences) {
    super();
    /** @private */
    this.client = client;
    /** @private */
    this.preferences = preferences;
    /** @private @type {Session} */
    this.original = {};
    /** @private */
    this.numSent = 0;
    /** @private Last update of each in this call. @type {Map<Field, {id: string, change: Session}>} */
    this.sent = new Map();
    /** Last error of the server for each setting. @type {Map<Field, string>} */
    this.refusals = new Map();
    preferences.addEventListener('change', (event) => {
      const { detail } = /** @type {CustomEvent<string[]>} */ (event);
      if (this.client.status.state !== 'open') return;
      for (const field of FIELDS) {
        const isMeant = detail.includes(field) || (field === 'turns' && detail.includes('silenceMs'));
        if (isMeant) this.send(field);
      }
    });
    client.addEventListener('event', (event) => {
      this.receive(/** @type {CustomEvent<RealtimeEvent>} */ (event).detail);
    });
  }

  /**
   * Apply the settings to a new connection, before anything else is sent.
   * @param {boolean} resumed true when the previous call continues
   */
  apply(resumed) {
    if (!resumed) {
      this.original = this.client.session ?? {};
      this.sent.clear();
    }
    for (const field of FIELDS) this.send(field);
  }

  /**
   * Handle an error of the server that answers one of these updates. Returns false for other
   * errors.
   * @param {{event_id?: string | null}} error
   */
  isOurs(error) {
    return fieldOf(error.event_id) !== null;
  }

  /**
   * @private
   * @param {Field} field
   */
  send(field) {
    const known = [this.client.session ?? {}, this.sent.get(field)?.change];
    const change = known
      .map((each) => each && difference(field, this.preferences.now, each, this.original))
      .find((each) => each);
    if (this.refusals.delete(field)) this.emit('accepted', { field });
    if (!change) return;
    this.numSent += 1;
    const id = `${PREFIX}-${field}-${this.numSent}`;
    this.sent.set(field, { id, change });
    this.client.send({
      type: 'session.update',
      event_id: id,
      session: { type: 'realtime', ...change },
    });
  }

  /**
   * @private
   * @param {RealtimeEvent} event
   */
  receive(event) {
    const field = event.type === 'error' ? fieldOf(event.error.event_id) : null;
    if (!field || this.sent.get(field)?.id !== event.error.event_id) return; // changed since
    this.sent.delete(field);
    this.refusals.set(field, event.error.message);
    this.emit('refused', { field, message: event.error.message });
  }

  /**
   * @private
   * @param {string} type
   * @param {{field: Field, message?: string}} detail
   */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/**
 * @param {string | null | undefined} eventId
 * @returns {Field | null}
 */
function fieldOf(eventId) {
  const [prefix, field] = (eventId ?? '').split('-');
  return prefix === PREFIX ? (FIELDS.find((each) => each === field) ?? null) : null;
}
