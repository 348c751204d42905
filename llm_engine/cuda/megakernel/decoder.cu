// The decoder's layers for up to eight rows in one kernel ("megakernel").
//
// A decode step is bounded by the bytes of the weights. A kernel for each product leaves the memory
// idle while one ends and the next begins. Here one block stays on each multiprocessor for the whole
// step, and its four *producer* warps copy the block's share of all weights, matrix after matrix,
// into a ring in shared memory. They never wait for a result, as weights depend on none. The eight
// *consumer* warps multiply what lies in the ring. While they wait for the other blocks, between two
// products or for attention, the ring fills.
//
// Products. A tile is 16 rows of a weight, the rows of the matrix units' operand A; the activations
// are its columns, so that a row of activations gets the same bits in any company. A stage of the
// ring has 1024 bytes of each of these rows, of which a consumer warp multiplies 128. At a tile's
// end the warps' sums are added in their order.
//
// Order of columns. The matrix units add products over k, in whatever order both operands agree on.
// So a thread takes 16 bytes of a row at once, and the same columns of the activations.
//
// Attention. An item is a key-value head with up to eight of its query rows; a work is one of its
// splits of the pages, of which a warp has one at a time. Each item has a block that combines its
// splits once they are done.
//
// Between blocks. Each phase has a counter of arrivals, zero before the launch. All blocks must be
// resident: a cooperative launch with one block for each multiprocessor.
//
// Size. Code that is executed once in a phase comes from the instruction caches' outer levels, and
// registers that spill from L2, as shared memory leaves little of L1: loops stay rolled where their
// turns do not overlap.
//
// device.cuh has the instructions; for tests on a CPU an emulation takes its place.

// Names that begin with TABLES_, HEAD_DIM and WEIGHT_BITS are the compiler's options: tables.py, which
// lays out what the kernel reads, has the numbers (`definitions`).

constexpr int MAX_ROWS = TABLES_MAX_ROWS;
constexpr int CONSUMER_WARPS = TABLES_CONSUMER_WARPS;
constexpr int CONSUMERS = 32 * CONSUMER_WARPS;
constexpr int PRODUCER_WARPS = TABLES_PRODUCER_WARPS;
constexpr int THREADS = CONSUMERS + 32 * PRODUCER_WARPS;
constexpr int TILE = TABLES_TILE;
constexpr int ROW_BYTES = TABLES_ROW_BYTES;  // of a weight's row in a stage: whole lines
constexpr int ROWS_A_WARP = TILE / PRODUCER_WARPS;
constexpr int STAGE_BYTES = TILE * ROW_BYTES;
constexpr int WARP_BYTES = ROW_BYTES / CONSUMER_WARPS;
constexpr int BLOCK_BYTES = 64;              // of a row, multiplied at once: 16 by a thread
constexpr int BLOCKS = WARP_BYTES / BLOCK_BYTES;
constexpr int STAGE_COLUMNS = ROW_BYTES * 8 / WEIGHT_BITS;
constexpr int BLOCK_COLUMNS = BLOCK_BYTES * 8 / WEIGHT_BITS;
constexpr int THREAD_COLUMNS = BLOCK_COLUMNS / 4;
constexpr int ACTIVATION_PAD = TABLES_ACTIVATION_PAD;  // bytes behind a row of activations
constexpr int GROUP = 2;                     // tiles that take turns with a chunk of activations
constexpr int MAX_STAGES = TABLES_MAX_STAGES;
constexpr int PAGE_SIZE = TABLES_PAGE_SIZE;
constexpr int HALF = HEAD_DIM / 2;
constexpr int QUERY_TILE = TABLES_QUERY_TILE;  // the columns of the matrix units
constexpr int WORKS_AT_ONCE = 4;
constexpr int MAX_WORKS = 8;                 // that are looked up once, for all layers
constexpr int SCALED = CONSUMERS / TILE;     // tiles whose scales are in shared memory at once
constexpr int AT_ONCE = 16;                  // splits whose results are under way at once
constexpr float LOG2_E = 1.4426950408889634f;

enum Kind : int {
  QUERIES = TABLES_QUERIES,
  ATTEND = TABLES_ATTEND,
  ADD = TABLES_ADD,
  GATE_UP = TABLES_GATE_UP,
  LOGITS = TABLES_LOGITS
};

// One product, or attention. 128 bytes; the host writes an array of them.
struct Phase {
  const unsigned char* weight;  // [rows, columns]
  const float* scales;          // [rows]; null: 1
  const float* bias;            // [rows]; null: 0
  const float* norm;            // [columns]; null: the source is not normalized
  const unsigned short* source; // bfloat16 [M, columns]
  void* out;                    // bfloat16 [M, outputs]; logits are float32
  unsigned short* keys;         // of QUERIES and ATTEND: pages of the layer
  unsigned short* values;
  int kind;
  int num_tiles;
  int columns;
  int outputs;                  // ADD, LOGITS: rows; GATE_UP: half of them
  int chunk;                    // columns of the activations that are in shared memory at once
  int first_block;              // rotates the tiles among the blocks
  int window;                   // ATTEND: 0: none
  float eps;
  int unused[8];
};

struct Step {
  const Phase* phases;
  unsigned int* arrivals;         // [phases], zero
  unsigned int* splits_done;      // [items of attention], zero, and zero again at the end
  float* mixtures;                // [items, splits, QUERY_TILE, HEAD_DIM]
  float* totals;                  // [items, splits, QUERY_TILE, 2]: largest score, sum
  const int* positions;           // [M]; -1: padding
  const int* tables;              // [num_seqs, table_width]
  const float* cos;               // [context, HALF]
  const float* sin;
  int num_phases;
  int num_seqs;
  int num_queries;                // rows of each sequence
  int table_width;
  int num_heads;
  int num_kv_heads;
  int num_splits;
  int num_stages;
  int max_under_way;             // stages that are being copied at the same time
  int max_ahead;                 // stages behind a full ring that are fetched into L2
  int activation_bytes;
  float scale;                    // of scores
  int unused[2];
};

// A work of attention: a split of an item.
struct Work {
  int item, split, kv_head, tile, seq, num_members, unused[2];
};

// Shared memory, in this order; behind it activations, then the ring.
struct Shared {
  unsigned long long full[MAX_STAGES];
  unsigned long long empty[MAX_STAGES];
  Phase phases[2];
  float sums[GROUP][CONSUMER_WARPS][BLOCKS * TILE * MAX_ROWS];
  float roots[MAX_ROWS];
  float row_max[WORKS_AT_ONCE][CONSUMER_WARPS][QUERY_TILE];
  float row_total[WORKS_AT_ONCE][CONSUMER_WARPS][QUERY_TILE];
  int positions[MAX_ROWS];
  int pages[MAX_ROWS];         // that the rows' keys and values belong to; -1: padding
  float scales[CONSUMERS];     // of the outputs of SCALED tiles
  float biases[CONSUMERS];
  Work works[MAX_WORKS];       // this block's
  int first_pages[MAX_WORKS][CONSUMER_WARPS];     // index of each warp's first page without a window
  int first_page_ids[MAX_WORKS][CONSUMER_WARPS];
  int unused[8];               // what follows begins with a line
};

static_assert(sizeof(Phase) == TABLES_PHASE_BYTES, "tables.Phase has another size");
static_assert(sizeof(Step) == TABLES_STEP_BYTES, "tables.Step has another size");
static_assert(sizeof(Shared) == TABLES_SHARED_STRUCT_BYTES, "SHARED_STRUCT_BYTES is another");
static_assert(sizeof(Shared) % 128 == 0, "the ring begins with a line");

DEVICE inline int min_of(int a, int b) { return a < b ? a : b; }
DEVICE inline int max_of(int a, int b) { return a > b ? a : b; }

// The block's tile of this index.
DEVICE inline int tile_of(int first_block, int index, int block, int grid) {
  int first = block + first_block;
  if (first >= grid) first -= grid;
  return first + index * grid;
}

DEVICE inline int num_tiles_of(int num_tiles, int first_block, int block, int grid) {
  const int first = tile_of(first_block, 0, block, grid);
  return num_tiles > first ? (num_tiles - first + grid - 1) / grid : 0;
}

// The weight's row that is row `r` of a tile. Where two outputs belong together (gate and up, the
// halves of a head), rows r and r + 8 are such a pair.
DEVICE inline int weight_row(int kind, int outputs, int tile, int r) {
  const int pair = tile * 8 + (r & 7), second = r >> 3;
  if (kind == QUERIES) return pair / HALF * HEAD_DIM + pair % HALF + second * HALF;
  if (kind == GATE_UP) return pair + second * outputs;
  return min_of(tile * TILE + r, outputs - 1);
}

// One row of the stages that this block multiplies, in their order.
struct Stream {
  const Phase* phases;
  const unsigned char* line;  // the weight's row
  int num_phases, lane, block, grid;
  int number;                 // of the phase; num_phases behind the last stage
  int kind, num_tiles, columns, outputs, chunk, first_block;
  int count, group;           // of this block's tiles; of those that are multiplied side by side
  int first, index;           // tiles: the group's first, the present one
  int begin, column;          // columns: the chunk's first, the stage's first

  DEVICE Stream(const Step& step, int lane_, int block_, int grid_)
      : phases(step.phases), line(nullptr), num_phases(step.num_phases), lane(lane_), block(block_),
        grid(grid_), number(-1), kind(0), num_tiles(0), columns(0), outputs(0), chunk(0),
        first_block(0), count(0), group(1), first(0), index(0), begin(0), column(0) {
    enter_phase();
  }

  DEVICE bool is_over() const { return number >= num_phases; }
  DEVICE const unsigned char* place() const { return line + (long long)column * WEIGHT_BITS / 8; }
  DEVICE int bytes() const {
    return min_of(columns - column, STAGE_COLUMNS) * WEIGHT_BITS / 8;
  }

  DEVICE void advance() {
    column += STAGE_COLUMNS;
    if (column < min_of(begin + chunk, columns)) return;
    if (++index < min_of(first + group, count)) {
      column = begin;
    } else if (begin + chunk < columns) {
      begin = column = begin + chunk;
      index = first;
    } else {
      first = index;
      begin = column = 0;
      if (first >= count) {
        enter_phase();
        return;
      }
    }
    enter_tile();
  }

  DEVICE void enter_phase() {
    while (++number < num_phases) {
      const Phase* phase = phases + number;
      kind = phase->kind;
      if (kind == ATTEND) continue;
      num_tiles = phase->num_tiles;
      columns = phase->columns;
      outputs = phase->outputs;
      chunk = phase->chunk;
      first_block = phase->first_block;
      count = num_tiles_of(num_tiles, first_block, block, grid);
      if (count == 0) continue;
      group = chunk < columns ? GROUP : count;
      first = index = begin = column = 0;
      enter_tile();
      return;
    }
  }

  DEVICE void enter_tile() {
    const int tile = tile_of(first_block, index, block, grid);
    line = phases[number].weight + (long long)weight_row(kind, outputs, tile, lane) * columns *
                                       WEIGHT_BITS / 8;
  }
};

// The producer warps: each copies four rows of every stage, in the order in which the stages are
// multiplied. (A warp's bulk copies are issued one after the other: one warp alone would be slower
// than memory.) No more stages are under way than keep memory busy. While the ring is full, the
// stages behind it are fetched into L2.
DEVICE void produce(const Step& step, Shared& shared, unsigned char* ring) {
  const int lane = thread_index() & 31, warp = (thread_index() - CONSUMERS) >> 5;
  const int row = warp * ROWS_A_WARP + (lane & (ROWS_A_WARP - 1));
  const bool copies = lane < ROWS_A_WARP;
  const unsigned long long policy = evict_first_policy();
  Stream stream(step, row, block_index(), num_blocks());
  int slot = 0, parity = 1;  // waiting for the phase before the first succeeds at once
  int landed = 0, landed_parity = 0, under_way = 0;
  Stream ahead = stream;  // the next stage that L2 does not have
  int num_ahead = 0;
#pragma unroll 1
  while (!stream.is_over()) {
    Deadline deadline;
    while (!has_passed(&shared.empty[slot], parity)) {
      if (num_ahead < step.max_ahead && !ahead.is_over()) {
        if (copies) prefetch_bulk(ahead.place(), ahead.bytes());
        ahead.advance();
        ++num_ahead;
      } else {
        deadline.check();
      }
    }
    if (under_way == step.max_under_way) {
      wait_barrier(&shared.full[landed], landed_parity);
      if (++landed == step.num_stages) { landed = 0; landed_parity ^= 1; }
    } else {
      ++under_way;
    }
    if (warp == 0 && lane == 0) expect_bytes(&shared.full[slot], stream.bytes() * TILE);
    if (copies)
      copy_bulk(ring + slot * STAGE_BYTES + row * ROW_BYTES, stream.place(), stream.bytes(),
                &shared.full[slot], policy);
    stream.advance();
    if (num_ahead > 0)
      --num_ahead;
    else
      ahead = stream;
    warp_sync();
    if (++slot == step.num_stages) { slot = 0; parity ^= 1; }
  }
}

// Place in the ring of the next stage to be multiplied.
struct RingPlace {
  int slot, parity;
};

DEVICE inline void wait_for_phase(const Step& step, int phase, unsigned int count) {
  if (thread_index() == 0) wait_for_count(&step.arrivals[phase], count);
  consumer_sync();
}

// The two warps that write a product's outputs arrive.
constexpr unsigned int ARRIVALS = 2;
DEVICE inline void arrive_at_phase(const Step& step, int phase) {
  if (thread_index() >= 32 * ARRIVALS) return;
  warp_sync();
  if ((thread_index() & 31) == 0) release_add(&step.arrivals[phase], 1u);
}

constexpr int VECTOR = 8;                    // activations that a thread loads at once
constexpr int PANEL = CONSUMERS * VECTOR;    // columns that all consumers load at once
constexpr int LOADS = 8;                     // loads of a thread that are under way at once

// Copies columns [begin, end) of the source's rows into shared memory. All consumers; a thread has
// the same columns of every row.
DEVICE inline void load_raw(const Phase& phase, unsigned char* activations, int num_rows, int begin,
                            int end) {
  const int stride = phase.chunk * 2 + ACTIVATION_PAD;
  const int first = begin + thread_index() * VECTOR;
  const unsigned short* from = phase.source + first;  // the next to be loaded
  int m = first < end ? 0 : num_rows, k = first, to = (first - begin) * 2;
#pragma unroll 1
  while (m < num_rows) {
    Words raw[LOADS];
    int place[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      place[i] = m < num_rows ? to : -1;
      if (m < num_rows) raw[i] = load_shared_data(from);
      from += PANEL;
      to += PANEL * 2;
      k += PANEL;
      if (k >= end) {  // the next row
        from += phase.columns - (k - first);
        to += stride - (k - first) * 2;
        k = first;
        ++m;
      }
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      if (place[i] >= 0) store_words(activations + place[i], raw[i]);
  }
}

// Adds a lane's share of the squares of a row of so many columns in shared memory to `sum`.
DEVICE inline float add_squares(float sum, const unsigned char* row, int columns) {
#pragma unroll 4
  for (int k = (thread_index() & 31) * VECTOR; k < columns; k += 32 * VECTOR) {
    const Words raw = load_words(row + k * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = bfloat_low(raw.w[i]), high = bfloat_high(raw.w[i]);
      sum += low * low;
      sum += high * high;
    }
  }
  return sum;
}

// Puts columns [begin, end) of the source's rows into shared memory, normalized if the phase has a
// norm, in the matrix units' type. All consumers. A warp adds up the squares of one row: in the same
// order for any number of rows.
DEVICE void load_activations(const Phase& phase, Shared& shared, unsigned char* activations,
                             int num_rows, int begin, int end) {
  const int thread = thread_index(), warp = thread >> 5;
  const int stride = phase.chunk * 2 + ACTIVATION_PAD;
  const bool is_normalized = phase.norm != nullptr;
  const int first = begin + thread * VECTOR;
  Floats weights[2][2];  // of the first two panels, loaded beside the activations
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (is_normalized && first + j * PANEL < end) {
      weights[j][0] = load_floats(phase.norm + first + j * PANEL);
      weights[j][1] = load_floats(phase.norm + first + j * PANEL + 4);
    }
  // If not all columns fit, the squares take passes of their own.
  const bool adds_squares = is_normalized && begin == 0;
  const int passes = adds_squares && phase.chunk < phase.columns
                         ? (phase.columns + phase.chunk - 1) / phase.chunk
                         : 0;
  float squares = 0.0f;
#pragma unroll 1
  for (int pass = 0; pass <= passes; ++pass) {
    const bool is_last = pass == passes;
    const int from = is_last ? begin : pass * phase.chunk;
    const int to = is_last ? end : min_of(from + phase.chunk, phase.columns);
    load_raw(phase, activations, num_rows, from, to);
    if (adds_squares && (!is_last || passes == 0)) {
      consumer_sync();
      if (warp < num_rows)
        squares = add_squares(squares, activations + warp * stride, to - from);
      if (!is_last) consumer_sync();
    }
  }
  if (is_normalized) {
    // The lanes' sums are added once, behind the last pass: in the same order for any passes.
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) squares += shuffle_xor(squares, mask);
    if (begin == 0 && (thread & 31) == 0 && warp < num_rows)
      shared.roots[warp] = inverse_root(squares / (float)phase.columns + phase.eps);
    consumer_sync();
  }
  // A thread converts what it has put there itself.
  if (is_normalized || WEIGHT_BITS == 8) {
#pragma unroll 1
    for (int panel = 0; first + panel * PANEL < end; ++panel) {
      const int k = first + panel * PANEL;
      Floats by[2] = {ones(), ones()};
      if (is_normalized) {
        if (panel < 2) {
          by[0] = panel == 0 ? weights[0][0] : weights[1][0];
          by[1] = panel == 0 ? weights[0][1] : weights[1][1];
        } else {
          by[0] = load_floats(phase.norm + k);
          by[1] = load_floats(phase.norm + k + 4);
        }
      }
#pragma unroll 1
      for (int m = 0; m < num_rows; ++m) {
        unsigned char* place = activations + m * stride + (k - begin) * 2;
        const Words raw = load_words(place);
        const float root = is_normalized ? shared.roots[m] : 1.0f;
        Words out;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float low = bfloat_low(raw.w[i]) * root * by[i >> 1].f[(i & 1) * 2];
          const float high = bfloat_high(raw.w[i]) * root * by[i >> 1].f[(i & 1) * 2 + 1];
          out.w[i] = WEIGHT_BITS == 8 ? pack_half(low, high) : pack_bfloat(low, high);
        }
        store_words(place, out);
      }
    }
  }
  consumer_sync();
}

// Adds the product of a warp's share of one stage, which is free again once it is in registers.
// `sums[b]` are those of the b-th block of 64 bytes, so that two chains of products are under way.
// `mine`: the thread's first bytes in the stage, `inputs`: its activations; `columns`: of the stage,
// behind the warp's first.
DEVICE inline void multiply_stage(const unsigned char* mine, const unsigned char* inputs,
                                  unsigned long long* empty, int columns, bool has_row,
                                  float (&sums)[BLOCKS][4]) {
  static_assert(BLOCKS == 2, "rows swap two blocks");
  constexpr int VECTORS = WEIGHT_BITS == 8 ? 2 : 1;  // 16 bytes of activations for 16 of a row
  const int lane = thread_index() & 31;
  // All rows begin in the same bank. Of each two, the second takes its blocks the other way round.
  const int swap = lane >> 2 & 1;
  Words low[BLOCKS], high[BLOCKS], x[BLOCKS][VECTORS];
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    low[b] = high[b] = zero_words();
    if ((b ^ swap) * BLOCK_COLUMNS < columns) {
      const unsigned char* place = mine + (b ^ swap) * BLOCK_BYTES;
      low[b] = load_words(place);
      high[b] = load_words(place + 8 * ROW_BYTES);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      x[b][i] = zero_words();
      if (has_row && b * BLOCK_COLUMNS < columns)
        x[b][i] = load_words(inputs + b * BLOCK_COLUMNS * 2 + i * 16);
    }
  }
  warp_sync();
  if (lane == 0) arrive_barrier(empty);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const unsigned int l = swap ? low[b ^ 1].w[j] : low[b].w[j];
      const unsigned int h = swap ? high[b ^ 1].w[j] : high[b].w[j];
#if WEIGHT_BITS == 8
      unsigned int l0, l1, h0, h1;
      halves_of_e4m3(l, l0, l1);
      halves_of_e4m3(h, h0, h1);
      multiply_half(sums[b], l0, h0, l1, h1, x[b][j >> 1].w[(j & 1) * 2],
                    x[b][j >> 1].w[(j & 1) * 2 + 1]);
#else
      if (j & 1) continue;
      const unsigned int l1 = swap ? low[b ^ 1].w[j + 1] : low[b].w[j + 1];
      const unsigned int h1 = swap ? high[b ^ 1].w[j + 1] : high[b].w[j + 1];
      multiply_bfloat(sums[b], l, h, l1, h1, x[b][0].w[j], x[b][0].w[j + 1]);
#endif
    }
  }
}

// A thread's scale and bias, of one output of SCALED tiles from `first` on.
struct Scaling {
  float scale, bias;
};

DEVICE inline Scaling load_scaling(const Phase& phase, int first) {
  const int block = block_index(), grid = num_blocks(), index = first + thread_index() / TILE;
  Scaling found = {1.0f, 0.0f};
  if (index < num_tiles_of(phase.num_tiles, phase.first_block, block, grid)) {
    const int row = weight_row(phase.kind, phase.outputs,
                               tile_of(phase.first_block, index, block, grid),
                               thread_index() % TILE);
    if (phase.scales != nullptr) found.scale = phase.scales[row];
    if (phase.bias != nullptr) found.bias = phase.bias[row];
  }
  return found;
}

DEVICE inline void keep_scaling(Shared& shared, const Scaling& with) {
  shared.scales[thread_index()] = with.scale;
  shared.biases[thread_index()] = with.bias;
}

// What a thread that writes outputs needs besides; loaded before the tile is multiplied, and used
// behind that.
struct Epilogue {
  int row, second;                     // of the outputs, in the weight
  unsigned short residual[2];          // ADD
  float cosine, sine;                  // QUERIES
};

DEVICE inline Epilogue prepare(const Step& step, const Phase& phase, Shared& shared, int tile,
                               int num_rows) {
  const int r = thread_index() >> 3, m = thread_index() & 7;
  Epilogue made;
  made.row = weight_row(phase.kind, phase.outputs, tile, r);
  made.second = weight_row(phase.kind, phase.outputs, tile, r + 8);
  made.residual[0] = made.residual[1] = 0;
  made.cosine = 1.0f;
  made.sine = 0.0f;
  if (m >= num_rows) return made;
  if (phase.kind == ADD) {
    const unsigned short* out = (const unsigned short*)phase.out + m * phase.outputs;
    made.residual[0] = load_shared_data16(out + made.row);
    made.residual[1] = load_shared_data16(out + made.second);
  } else if (phase.kind == QUERIES && made.row / HEAD_DIM < step.num_heads + step.num_kv_heads) {
    const int at = max_of(shared.positions[m], 0) * HALF + made.row % HEAD_DIM;
    made.cosine = step.cos[at];
    made.sine = step.sin[at];
  }
  return made;
}

DEVICE inline void write_outputs(const Step& step, const Phase& phase, Shared& shared,
                                 const Epilogue& with, int index, float first, float second) {
  const int r = thread_index() >> 3, m = thread_index() & 7, place = index % SCALED * TILE + r;
  first = first * shared.scales[place] + shared.biases[place];
  second = second * shared.scales[place + 8] + shared.biases[place + 8];
  if (phase.kind == LOGITS) {
    float* out = (float*)phase.out + (long long)m * phase.outputs;
    out[with.row] = first;
    out[with.second] = second;
    return;
  }
  unsigned short* out = (unsigned short*)phase.out + m * phase.outputs;
  if (phase.kind == ADD) {
    out[with.row] = bfloat_of(first + bfloat_to_float(with.residual[0]));
    out[with.second] = bfloat_of(second + bfloat_to_float(with.residual[1]));
  } else if (phase.kind == GATE_UP) {
    out[with.row] = bfloat_of(first * second * reciprocal(1.0f + exp2_of(-first * LOG2_E)));
  } else {
    const int head = with.row / HEAD_DIM, kv_head = head - step.num_heads;
    if (kv_head < 0) {
      out = (unsigned short*)phase.out + (m * step.num_heads + head) * HEAD_DIM;
    } else {
      const int page = shared.pages[m];
      if (page < 0) return;
      const bool is_key = kv_head < step.num_kv_heads;
      out = (is_key ? phase.keys : phase.values) +
            ((long long)page * step.num_kv_heads + kv_head - (is_key ? 0 : step.num_kv_heads)) *
                (PAGE_SIZE * HEAD_DIM) +
            shared.positions[m] % PAGE_SIZE * HEAD_DIM;
    }
    out += with.row % HEAD_DIM;
    out[0] = bfloat_of(first * with.cosine - second * with.sine);
    out[HALF] = bfloat_of(second * with.cosine + first * with.sine);
  }
}

// Multiplies this block's tiles of a phase. If the activations are in shared memory chunk by chunk, a
// group of tiles takes turns with each chunk; their sums wait in shared memory.
DEVICE void multiply(const Step& step, const Phase& phase, Shared& shared,
                     unsigned char* activations, const unsigned char* ring, RingPlace& at) {
  const int thread = thread_index(), lane = thread & 31, warp = thread >> 5;
  const int block = block_index(), grid = num_blocks();
  const int num_rows = step.num_seqs * step.num_queries;
  const int count = num_tiles_of(phase.num_tiles, phase.first_block, block, grid);
  const bool is_whole = phase.chunk >= phase.columns;
  const int group = is_whole ? count : GROUP;
  const bool has_row = (lane >> 2) < num_rows;
  // The thread's first bytes of a stage and of its activations.
  const int row = lane >> 2, quarter = lane & 3, warp_column = warp * WARP_BYTES * 8 / WEIGHT_BITS;
  const unsigned char* place = ring + row * ROW_BYTES + warp * WARP_BYTES + quarter * 16;
  const unsigned char* inputs =
      activations + (has_row ? row * (phase.chunk * 2 + ACTIVATION_PAD) : 0) +
      (warp_column + quarter * THREAD_COLUMNS) * 2;
  const int columns = phase.columns, chunk = phase.chunk;
#pragma unroll 1
  for (int first = 0; first < count; first += group) {
    const int last = min_of(first + group, count);
#pragma unroll 1
    for (int begin = 0; begin < columns; begin += chunk) {
      const int end = min_of(begin + chunk, columns);
      consumer_sync();
      load_activations(phase, shared, activations, num_rows, begin, end);
#pragma unroll 1
      for (int index = first; index < last; ++index) {
        if (index > 0 && index % SCALED == 0 && begin == 0) {
          const Scaling with = load_scaling(phase, index);
          consumer_sync();
          keep_scaling(shared, with);
        }
        float(&mine)[BLOCKS * TILE * MAX_ROWS] = shared.sums[(index - first) % GROUP][warp];
        const bool is_end = end == columns;
        Epilogue with;
        if (is_end && thread < 64)
          with = prepare(step, phase, shared, tile_of(phase.first_block, index, block, grid),
                         num_rows);
        float sums[BLOCKS][4];
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            sums[b][j] = begin > 0 ? mine[(b * 4 + j) * 32 + lane] : 0.0f;
#pragma unroll 1
        for (int column = begin; column < end; column += STAGE_COLUMNS) {
          wait_barrier(&shared.full[at.slot], at.parity);
          multiply_stage(place + at.slot * STAGE_BYTES, inputs + (column - begin) * 2,
                         &shared.empty[at.slot], columns - column - warp_column, has_row, sums);
          if (++at.slot == step.num_stages) { at.slot = 0; at.parity ^= 1; }
        }
        // The blocks' sums are added at the end only: in the same order for any size of chunks.
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int b = 1; b < BLOCKS; ++b) {
            if (is_end)
              sums[0][j] += sums[b][j];
            else
              mine[(b * 4 + j) * 32 + lane] = sums[b][j];
          }
          mine[j * 32 + lane] = sums[0][j];
        }
        if (is_end) {
          consumer_sync();
          if (thread < 64 && (thread & 7) < num_rows) {
            // Output (r, m) is number j of the lane that the matrix units' layout gives it.
            const int r = thread >> 3, m = thread & 7, holder = r * 4 + m / 2, j = m & 1;
            float low = 0.0f, high = 0.0f;
#pragma unroll
            for (int w = 0; w < CONSUMER_WARPS; ++w) {
              low += shared.sums[(index - first) % GROUP][w][j * 32 + holder];
              high += shared.sums[(index - first) % GROUP][w][(j + 2) * 32 + holder];
            }
            write_outputs(step, phase, shared, with, index, low, high);
          }
        }
      }
    }
  }
}

struct QueryRow {
  int row;       // of the step; -1: none
  int head;
  int position;
};

DEVICE inline QueryRow query_row(const Step& step, Shared& shared, int seq, int kv_head,
                                 int member) {
  const int group = step.num_heads / step.num_kv_heads;
  QueryRow found = {-1, 0, -1};
  if (member < step.num_queries * group) {
    found.row = seq * step.num_queries + member / group;
    found.head = kv_head * group + member % group;
    found.position = shared.positions[found.row];
  }
  return found;
}

// Positions that a sequence's rows see: from `first` to `last`; last < first: none. A row that sees
// fewer of them adds zeros for the others.
struct Range {
  int first, last;
};

DEVICE inline Range seen_by(const Step& step, Shared& shared, int seq, int window) {
  int last = -1, earliest = 1 << 30;
  for (int i = 0; i < step.num_queries; ++i) {
    const int position = shared.positions[seq * step.num_queries + i];
    last = max_of(last, position);
    if (position >= 0) earliest = min_of(earliest, position);
  }
  return {window > 0 && last >= 0 ? max_of(earliest - window + 1, 0) : 0, last};
}

// The first page of this warp and split; the next ones are num_splits * CONSUMER_WARPS further.
DEVICE inline int first_page(const Range& range, int split, int num_splits, int warp) {
  const int begin = range.first / PAGE_SIZE;
  const int page = begin + (split + num_splits - begin % num_splits) % num_splits;
  return page + (warp + CONSUMER_WARPS - page / num_splits % CONSUMER_WARPS) % CONSUMER_WARPS *
                    num_splits;
}

DEVICE inline int end_page(const Range& range) {
  return range.last < 0 ? 0 : range.last / PAGE_SIZE + 1;
}

DEVICE inline int num_query_tiles(const Step& step) {
  const int members = step.num_queries * (step.num_heads / step.num_kv_heads);
  return (members + QUERY_TILE - 1) / QUERY_TILE;
}

// Works of this block: splits of heads, each with all its query tiles, one behind the other.
DEVICE inline int num_works_of(const Step& step, int tiles) {
  const int splits = step.num_seqs * step.num_kv_heads * step.num_splits;
  const int block = block_index(), grid = num_blocks();
  return splits > block ? (splits - block + grid - 1) / grid * tiles : 0;
}

DEVICE inline Work work_of(const Step& step, int index, int tiles) {
  const int members = step.num_queries * (step.num_heads / step.num_kv_heads);
  const int number = block_index() + index / tiles * num_blocks();
  const int head = number / step.num_splits;
  Work found;
  found.split = number % step.num_splits;
  found.tile = index % tiles;
  found.kv_head = head % step.num_kv_heads;
  found.seq = head / step.num_kv_heads;
  found.item = head * tiles + found.tile;
  found.num_members = min_of(members - found.tile * QUERY_TILE, QUERY_TILE);
  return found;
}

// A thread's part of a page, as the matrix units take it.
struct PageData {
  Words key[2][HEAD_DIM / 32];    // of keys g and g + 8, columns t * (HEAD_DIM / 4) ...
  Words value[4][HEAD_DIM / 64];  // of keys 2t, 2t + 1, 2t + 8, 2t + 9, columns g * (HEAD_DIM / 8) ...
};

DEVICE inline void load_page(const Step& step, const Phase& phase, int page_id, int kv_head,
                             int first_position, const Range& range, PageData& data) {
  const int lane = thread_index() & 31, g = lane >> 2, t = lane & 3;
  const long long place =
      ((long long)page_id * step.num_kv_heads + kv_head) * (PAGE_SIZE * HEAD_DIM);
  const unsigned short* keys = phase.keys + place + g * HEAD_DIM + t * (HEAD_DIM / 4);
  const unsigned short* values = phase.values + place + 2 * t * HEAD_DIM + g * (HEAD_DIM / 8);
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; ++i)
      data.key[n][i] = load_shared_data(keys + n * 8 * HEAD_DIM + i * 8);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int at = (k & 1) + (k >> 1) * 8, position = first_position + 2 * t + at;
    const bool is_written = position >= range.first && position <= range.last;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 64; ++i)
      data.value[k][i] =
          is_written ? load_shared_data(values + at * HEAD_DIM + i * 8) : zero_words();
  }
}

// This block's work of an index.
DEVICE inline Work this_work(const Step& step, Shared& shared, int index, int tiles) {
  return index < MAX_WORKS ? shared.works[index] : work_of(step, index, tiles);
}

// Looks up this block's works, and where each warp begins in layers without a window.
DEVICE void look_up_works(const Step& step, Shared& shared) {
  const int lane = thread_index() & 31, warp = thread_index() >> 5;
  const int tiles = num_query_tiles(step), num_works = num_works_of(step, tiles);
#pragma unroll 1
  for (int index = 0; index < MAX_WORKS; ++index) {
    int page = -1, id = -1;
    if (index < num_works) {
      const Work work = work_of(step, index, tiles);
      const Range range = seen_by(step, shared, work.seq, 0);
      if (warp == 0 && lane == 0) shared.works[index] = work;
      page = first_page(range, work.split, step.num_splits, warp);
      id = page < end_page(range) ? step.tables[work.seq * step.table_width + page] : -1;
    }
    if (lane == 0) {
      shared.first_pages[index][warp] = page;
      shared.first_page_ids[index][warp] = id;
    }
  }
}

// Fetches into L2 what this block's attention will read first.
DEVICE void prefetch_pages(const Step& step, const Phase& phase, Shared& shared) {
  const int lane = thread_index() & 31, warp = thread_index() >> 5;
  constexpr int LINES = PAGE_SIZE * HEAD_DIM * 2 / 128;
  if (phase.window > 0 || lane >= LINES) return;
#pragma unroll 1
  for (int index = 0; index < MAX_WORKS; ++index) {
    const int id = shared.first_page_ids[index][warp];
    if (id < 0 || shared.works[index].tile > 0) continue;
    const long long place = ((long long)id * step.num_kv_heads + shared.works[index].kv_head) *
                                (PAGE_SIZE * HEAD_DIM) +
                            lane * 64;
    prefetch(phase.keys + place);
    prefetch(phase.values + place);
  }
}

// Attention over a warp's pages of one work; its sums go to shared memory. Scores are computed as
// keys times queries, so that queries are the columns of both products: of each thread, columns 2t
// and 2t + 1. `data` holds the page of the work before, `loaded`: the next tile of the same split
// begins there, if it has one page.
DEVICE void attend_pages(const Step& step, const Phase& phase, Shared& shared, float* row_max,
                         float* row_total, float* part, const Work& work, int index,
                         PageData& data, int& loaded) {
  constexpr int TILES = HEAD_DIM / 16, STEPS = HEAD_DIM / 16, VECTORS = HEAD_DIM / 32;
  const int lane = thread_index() & 31, warp = thread_index() >> 5;
  const int g = lane >> 2, t = lane & 3;
  const QueryRow mine =
      query_row(step, shared, work.seq, work.kv_head, work.tile * QUERY_TILE + g);
  const bool is_known = index < MAX_WORKS && phase.window == 0;
  const Range range = seen_by(step, shared, work.seq, phase.window);
  const int positions[2] = {from_lane(mine.position, 8 * t), from_lane(mine.position, 8 * t + 4)};

  // Operand B: of k-step j, columns t * (HEAD_DIM / 4) + 4 j .. + 3 of row g.
  Words query[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) {
    query[i] = zero_words();
    if (mine.row >= 0)
      query[i] = load_shared_data(phase.source +
                                  ((long long)mine.row * step.num_heads + mine.head) * HEAD_DIM +
                                  t * (HEAD_DIM / 4) + i * 8);
  }
  float mixed[TILES][4];
#pragma unroll
  for (int d = 0; d < TILES; ++d)
#pragma unroll
    for (int j = 0; j < 4; ++j) mixed[d][j] = 0.0f;
  float biggest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
  const int* table = step.tables + work.seq * step.table_width;
  const int end = end_page(range);
  const int begin = is_known ? shared.first_pages[index][warp]
                             : first_page(range, work.split, step.num_splits, warp);
#pragma unroll 1
  for (int page = begin; page < end; page += step.num_splits * CONSUMER_WARPS) {
    const int id = page == begin && is_known ? shared.first_page_ids[index][warp] : table[page];
    if (work.tile == 0 || id != loaded)
      load_page(step, phase, id, work.kv_head, page * PAGE_SIZE, range, data);
    loaded = id;
    float scores[4];  // (key g, query 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] = 0.0f;
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
      multiply_bfloat(scores, data.key[0][j / 2].w[(j & 1) * 2], data.key[1][j / 2].w[(j & 1) * 2],
                      data.key[0][j / 2].w[(j & 1) * 2 + 1], data.key[1][j / 2].w[(j & 1) * 2 + 1],
                      query[j / 2].w[(j & 1) * 2], query[j / 2].w[(j & 1) * 2 + 1]);
    float kept[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int behind = positions[h] - (page * PAGE_SIZE + n * 8 + g);
        const bool is_visible = behind >= 0 && (phase.window == 0 || behind < phase.window);
        scores[2 * n + h] = is_visible ? scores[2 * n + h] * (step.scale * LOG2_E) : -INFINITY;
        top = max_float(top, scores[2 * n + h]);
      }
#pragma unroll
      for (int mask = 16; mask >= 4; mask >>= 1) top = max_float(top, shuffle_xor(top, mask));
      top = max_float(top, biggest[h]);
      const float base = top == -INFINITY ? 0.0f : top;  // a row that has seen nothing yet
      kept[h] = exp2_of(biggest[h] - base);
      biggest[h] = top;
#pragma unroll
      for (int n = 0; n < 2; ++n) scores[2 * n + h] = exp2_of(scores[2 * n + h] - base);
      total[h] = total[h] * kept[h] + (scores[h] + scores[2 + h]);
    }
    // Operand B of the second product: keys 2t, 2t + 1 and 2t + 8, 2t + 9 of query g.
    const unsigned int weight_0 = transposed(pack_bfloat(scores[0], scores[1]));
    const unsigned int weight_1 = transposed(pack_bfloat(scores[2], scores[3]));
#pragma unroll
    for (int d = 0; d < TILES; ++d) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mixed[d][j] *= kept[j & 1];
      // Operand A: columns g * (HEAD_DIM / 8) + 2d (row g) and + 2d + 1 (row g + 8) of four keys.
      const int vector = d / 4, word = d % 4;
      const unsigned int v0 = data.value[0][vector].w[word], v1 = data.value[1][vector].w[word];
      const unsigned int v2 = data.value[2][vector].w[word], v3 = data.value[3][vector].w[word];
      multiply_bfloat(mixed[d], join_halves(v0, v1, 0), join_halves(v0, v1, 1),
                      join_halves(v2, v3, 0), join_halves(v2, v3, 1), weight_0, weight_1);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = total[h];
#pragma unroll
    for (int mask = 16; mask >= 4; mask >>= 1) sum += shuffle_xor(sum, mask);
    const int row = 2 * t + h;
    if (g == 0) {
      row_max[row] = biggest[h];
      row_total[row] = sum;
    }
    if (row < work.num_members && biggest[h] != -INFINITY) {
      float* place = part + row * HEAD_DIM + g * (HEAD_DIM / 8);
#pragma unroll
      for (int d = 0; d < TILES; ++d) {
        place[2 * d] = mixed[d][h];
        place[2 * d + 1] = mixed[d][2 + h];
      }
    }
  }
}

// Combines all splits of an item, whose results other blocks have written.
DEVICE void combine(const Step& step, const Phase& phase, Shared& shared, int item, int tiles) {
  const int num_splits = step.num_splits, all = item * num_splits * QUERY_TILE;
  const int members = step.num_queries * (step.num_heads / step.num_kv_heads);
  const int tile = item % tiles, kv_head = item / tiles % step.num_kv_heads;
  const int seq = item / tiles / step.num_kv_heads;
  const int num_members = min_of(members - tile * QUERY_TILE, QUERY_TILE);
#pragma unroll 1
  for (int place = 2 * thread_index(); place < num_members * HEAD_DIM; place += 2 * CONSUMERS) {
    const int row = place / HEAD_DIM;
    Pair sum = {0.0f, 0.0f};
    float base = -INFINITY, total = 0.0f;
#pragma unroll 1
    for (int begin = 0; begin < num_splits; begin += AT_ONCE) {
      Pair parts[AT_ONCE], totals[AT_ONCE];  // `x` of a total: the largest score
#pragma unroll
      for (int s = 0; s < AT_ONCE; ++s) {
        const int at = all + min_of(begin + s, num_splits - 1) * QUERY_TILE;
        totals[s] = load_shared_pair(step.totals + 2 * (at + row));
        parts[s] = load_shared_pair(step.mixtures + (long long)at * HEAD_DIM + place);
      }
#pragma unroll
      for (int s = 0; s < AT_ONCE; ++s) {
        if (begin + s >= num_splits || totals[s].x == -INFINITY) continue;
        const float top = max_float(base, totals[s].x);
        const float kept = exp2_of(base - top), weight = exp2_of(totals[s].x - top);
        sum.x = sum.x * kept + weight * parts[s].x;
        sum.y = sum.y * kept + weight * parts[s].y;
        total = total * kept + weight * totals[s].y;
        base = top;
      }
    }
    const QueryRow found = query_row(step, shared, seq, kv_head, tile * QUERY_TILE + row);
    const float by = total > 0.0f ? 1.0f / total : 0.0f;
    unsigned short* out = (unsigned short*)phase.out +
                          (found.row * step.num_heads + found.head) * HEAD_DIM + place % HEAD_DIM;
    *(unsigned int*)out = pack_bfloat(sum.x * by, sum.y * by);
  }
}

// Attention of all rows: this block's works, several side by side. Then the block combines its items,
// as soon as the other blocks have done their splits.
DEVICE void attend(const Step& step, const Phase& phase, Shared& shared, float* parts, int number,
                   int num_items) {
  const int thread = thread_index(), warp = thread >> 5;
  const int members = step.num_queries * (step.num_heads / step.num_kv_heads);
  const int tiles = num_query_tiles(step), num_works = num_works_of(step, tiles);
  const int part_size = CONSUMER_WARPS * min_of(members, QUERY_TILE) * HEAD_DIM;  // floats of a work
  const int at_once =
      max_of(1, min_of(WORKS_AT_ONCE, step.activation_bytes / (part_size * (int)sizeof(float))));
  PageData data;
  int loaded = -1;
#pragma unroll 1
  for (int begin = 0; begin < num_works; begin += at_once) {
    const int count = min_of(at_once, num_works - begin);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const Work work = this_work(step, shared, begin + i, tiles);
      attend_pages(step, phase, shared, shared.row_max[i][warp], shared.row_total[i][warp],
                   parts + i * part_size + warp * work.num_members * HEAD_DIM, work, begin + i,
                   data, loaded);
    }
    consumer_sync();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const Work work = this_work(step, shared, begin + i, tiles);
      const float* mine = parts + i * part_size;
      const int first = (work.item * step.num_splits + work.split) * QUERY_TILE;
#pragma unroll 1
      for (int place = 2 * thread; place < work.num_members * HEAD_DIM; place += 2 * CONSUMERS) {
        const int row = place / HEAD_DIM;
        float tops[CONSUMER_WARPS], base = -INFINITY;
#pragma unroll
        for (int w = 0; w < CONSUMER_WARPS; ++w) {
          tops[w] = shared.row_max[i][w][row];
          base = max_float(base, tops[w]);
        }
        Pair sum = {0.0f, 0.0f};
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < CONSUMER_WARPS; ++w)
          if (tops[w] != -INFINITY) {
            const float weight = exp2_of(tops[w] - base);
            const Pair part = load_pair(mine + w * work.num_members * HEAD_DIM + place);
            sum.x += weight * part.x;
            sum.y += weight * part.y;
            total += weight * shared.row_total[i][w][row];
          }
        store_pair(step.mixtures + (long long)first * HEAD_DIM + place, sum);
        if (place % HEAD_DIM == 0) store_pair(step.totals + 2 * (first + row), {base, total});
      }
    }
    consumer_sync();
    if (thread < count)
      release_add(&step.splits_done[this_work(step, shared, begin + thread, tiles).item], 1u);
  }
#pragma unroll 1
  for (int item = block_index(); item < num_items; item += num_blocks()) {
    if (thread == 0) {
      wait_for_count(&step.splits_done[item], step.num_splits);
      step.splits_done[item] = 0;
    }
    consumer_sync();
    combine(step, phase, shared, item, tiles);
    consumer_sync();
    if (thread == 0) release_add(&step.arrivals[number], 1u);
  }
}

DEVICE void consume(const Step& step, Shared& shared, unsigned char* activations,
                    const unsigned char* ring) {
  const int thread = thread_index();
  const int num_rows = step.num_seqs * step.num_queries;
  const int num_items = step.num_seqs * num_query_tiles(step) * step.num_kv_heads;
  constexpr int WORDS = sizeof(Phase) / 4;
  if (thread < WORDS) ((int*)&shared.phases[0])[thread] = ((const int*)step.phases)[thread];
  if (thread < num_rows) {
    const int position = step.positions[thread];
    shared.positions[thread] = position;
    shared.pages[thread] =
        position < 0
            ? -1
            : step.tables[thread / step.num_queries * step.table_width + position / PAGE_SIZE];
  }
  consumer_sync();
  look_up_works(step, shared);
  consumer_sync();
  RingPlace at = {0, 0};
#pragma unroll 1
  for (int p = 0; p < step.num_phases; ++p) {
    const Phase& phase = shared.phases[p & 1];
    // What does not depend on the phase before comes while this block waits for it.
    int next = 0;
    if (thread < WORDS && p + 1 < step.num_phases)
      next = ((const int*)(step.phases + p + 1))[thread];
    Scaling scaling = {1.0f, 0.0f};
    if (phase.kind == ATTEND) {
      prefetch_pages(step, phase, shared);
    } else {
      scaling = load_scaling(phase, 0);
      const int line = block_index() + thread * num_blocks();
      if (phase.norm != nullptr && line * 32 < phase.columns) prefetch(phase.norm + line * 32);
    }
    if (p > 0) {
      const bool is_behind_attention = shared.phases[(p - 1) & 1].kind == ATTEND;
      wait_for_phase(step, p - 1,
                     is_behind_attention ? (unsigned)num_items : ARRIVALS * num_blocks());
    }
    if (phase.kind == ATTEND) {
      attend(step, phase, shared, (float*)activations, p, num_items);
    } else {
      keep_scaling(shared, scaling);
      multiply(step, phase, shared, activations, ring, at);
      arrive_at_phase(step, p);
    }
    if (thread < WORDS) ((int*)&shared.phases[(p + 1) & 1])[thread] = next;
    consumer_sync();
  }
}

KERNEL(THREADS) void decode(const Step step) {
  unsigned char* memory = shared_memory();
  Shared& shared = *(Shared*)memory;
  unsigned char* activations = memory + sizeof(Shared);
  unsigned char* ring = activations + step.activation_bytes;
  if (thread_index() == 0) {
    for (int i = 0; i < step.num_stages; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], CONSUMER_WARPS);
    }
    publish_barriers();
  }
  block_sync();
  if (thread_index() < CONSUMERS) {
    take_registers();
    consume(step, shared, activations, ring);
  } else {
    give_registers();
    produce(step, shared, ring);
  }
}
