// What device.cuh has, for one CPU thread: every thread of every block is a fiber, and waits by
// letting the others run. Bulk copies arrive late and out of order, so that a read before its
// barrier is found. Order of memory between blocks is not tested: a CPU thread has one.

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define DEVICE
#define KERNEL(threads) static

struct Words { unsigned int w[4]; };
struct Floats { float f[4]; };
struct Pair { float x, y; };

namespace emulation {

constexpr int THREADS = TABLES_THREADS;
constexpr size_t STACK = 96 << 10;

struct Gathering {  // of threads that wait for one another
  int arrived = 0;
  unsigned generation = 0;
};

struct Warp {
  Gathering gathering;
  unsigned int words[32][1];
  float numbers[32][6][2];
};

struct Block {
  std::vector<unsigned char> memory;
  Gathering all, consumers;
  Warp warps[THREADS / 32];
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes;
  unsigned long long* barrier;
};

struct Fiber {
  ucontext_t start;
  jmp_buf place;  // where it goes on; swapcontext would ask the system for its signals each time
  int block, thread;
  bool has_begun = false, is_done = false;
  bool (*is_due)(const void*) = nullptr;  // whether what it waits for is there; null: nothing
  const void* condition = nullptr;
};

inline std::vector<std::unique_ptr<Block>> blocks;
inline std::vector<Fiber> fibers;
inline std::vector<Copy> copies;
inline Fiber* current;
inline jmp_buf scheduler;
inline uint64_t randomness;
inline bool has_moved;  // since the scheduler last looked: nothing moves in a deadlock

inline uint32_t draw() {
  randomness = randomness * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(randomness >> 33);
}
inline Block& block() { return *blocks[current->block]; }
inline Warp& warp() { return block().warps[current->thread / 32]; }
inline void yield() {
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

// The scheduler looks at the condition on each turn, without a change of stacks.
template <typename Condition>
inline void wait_until(const Condition& condition) {
  if (condition()) return;
  current->condition = &condition;
  current->is_due = [](const void* wanted) {
    return (*static_cast<const Condition*>(wanted))();
  };
  yield();
  current->is_due = nullptr;
}

inline void gather(Gathering& g, int count) {
  const unsigned mine = g.generation;
  has_moved = true;
  if (++g.arrived == count) {
    g.arrived = 0;
    ++g.generation;
    return;
  }
  wait_until([&g, mine] { return g.generation != mine; });
}

// An mbarrier: arrivals wanted, arrivals missing, bytes missing, and the phase's parity.
struct Barrier {
  uint16_t wanted;
  uint16_t missing : 15;
  uint16_t parity : 1;
  int32_t bytes;
};
inline Barrier read(unsigned long long* word) {
  Barrier b;
  std::memcpy(&b, word, 8);
  return b;
}
inline void write(unsigned long long* word, Barrier b) {
  if (b.missing == 0 && b.bytes == 0) {
    b.missing = b.wanted;
    b.parity ^= 1;
  }
  std::memcpy(word, &b, 8);
  has_moved = true;
}

inline float half_to_float(unsigned short bits) {
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return (float)h;
}
inline unsigned short float_to_half(float x) {
  x = std::fmin(std::fmax(x, -65504.0f), 65504.0f);
  _Float16 h = (_Float16)x;
  unsigned short bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
inline float bits_to_float(unsigned int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline unsigned short float_to_bfloat(float x) {
  unsigned int bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return 0x7fff;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float e4m3_to_float(unsigned int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  float x = exponent == 15 && mantissa == 7 ? NAN
            : exponent == 0                 ? std::ldexp((float)mantissa, -9)
                                            : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
  return byte & 0x80 ? -x : x;
}

template <typename Convert>
inline void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                     unsigned b0, unsigned b1, Convert convert) {
  const unsigned int mine[6] = {a0, a1, a2, a3, b0, b1};
  Warp& w = warp();
  const int lane = current->thread % 32, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 6; ++i)
    for (int odd = 0; odd < 2; ++odd)
      w.numbers[lane][i][odd] = convert((unsigned short)(mine[i] >> 16 * odd));
  gather(w.gathering, 32);
  for (int i = 0; i < 4; ++i) {
    const int row = g + (i / 2) * 8, column = 2 * t + i % 2;
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int other = k % 8 / 2, upper = k / 8, odd = k % 2;
      sum += (double)w.numbers[row % 8 * 4 + other][row / 8 + 2 * upper][odd] *
             w.numbers[column * 4 + other][4 + upper][odd];
    }
    sums[i] = (float)(sums[i] + sum);
  }
  gather(w.gathering, 32);
}

template <typename T>
inline T shuffle_xor(T x, int mask) {
  Warp& w = warp();
  const int lane = current->thread % 32;
  std::memcpy(w.words[lane], &x, 4);
  gather(w.gathering, 32);
  T found;
  std::memcpy(&found, w.words[lane ^ mask], 4);
  gather(w.gathering, 32);
  return found;
}

inline void arrive_late() {  // one of the copies under way
  const size_t index = draw() % copies.size();
  const Copy copy = copies[index];
  copies[index] = copies.back();
  copies.pop_back();
  std::memcpy(copy.to, copy.from, copy.bytes);
  Barrier b = read(copy.barrier);
  b.bytes -= copy.bytes;
  write(copy.barrier, b);
}

}  // namespace emulation

inline int thread_index() { return emulation::current->thread; }
inline int block_index() { return emulation::current->block; }
inline int num_blocks() { return (int)emulation::blocks.size(); }
inline unsigned char* shared_memory() { return emulation::block().memory.data(); }
inline void block_sync() { emulation::gather(emulation::block().all, emulation::THREADS); }
inline void consumer_sync() { emulation::gather(emulation::block().consumers, 256); }
inline void warp_sync() { emulation::gather(emulation::warp().gathering, 32); }

inline void init_barrier(unsigned long long* barrier, int count) {
  emulation::Barrier b{};
  b.wanted = count;
  b.missing = count;
  std::memcpy(barrier, &b, 8);
}
inline void publish_barriers() {}
inline void take_registers() {}
inline void give_registers() {}
inline void arrive_barrier(unsigned long long* barrier) {
  emulation::Barrier b = emulation::read(barrier);
  b.missing -= 1;
  emulation::write(barrier, b);
}
inline void expect_bytes(unsigned long long* barrier, int bytes) {
  emulation::Barrier b = emulation::read(barrier);
  b.bytes += bytes;
  b.missing -= 1;
  emulation::write(barrier, b);
}
inline bool has_passed(unsigned long long* barrier, int parity) {
  return emulation::read(barrier).parity != parity;
}
inline void wait_barrier(unsigned long long* barrier, int parity) {
  emulation::wait_until([=] { return has_passed(barrier, parity); });
}
struct Deadline {
  void check() { emulation::yield(); }
};
inline unsigned long long evict_first_policy() { return 0; }
inline void copy_bulk(unsigned char* to, const unsigned char* from, int bytes,
                      unsigned long long* barrier, unsigned long long) {
  if (bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16) {
    std::fprintf(stderr, "bulk copy of %d bytes is not aligned to 16\n", bytes);
    std::abort();
  }
  emulation::copies.push_back({to, from, bytes, barrier});
}
inline void prefetch(const void*) {}
inline void prefetch_bulk(const unsigned char*, int) {}
inline void wait_for_count(const unsigned int* counter, unsigned int count) {
  emulation::wait_until([=] { return *(volatile const unsigned int*)counter >= count; });
}
inline void release_add(unsigned int* counter, unsigned int number) {
  *counter += number;
  emulation::has_moved = true;
}
inline Words load_shared_data(const unsigned short* from) {
  Words v;
  std::memcpy(&v, from, 16);
  return v;
}
inline unsigned short load_shared_data16(const unsigned short* from) { return *from; }
inline Pair load_pair(const float* from) { return {from[0], from[1]}; }
inline Pair load_shared_pair(const float* from) { return load_pair(from); }
inline void store_pair(float* to, const Pair& v) { to[0] = v.x; to[1] = v.y; }
inline Words load_words(const unsigned char* from) {
  Words v;
  std::memcpy(&v, from, 16);
  return v;
}
inline void store_words(unsigned char* to, const Words& v) { std::memcpy(to, &v, 16); }
inline Words zero_words() { return {{0, 0, 0, 0}}; }
inline Floats ones() { return {{1, 1, 1, 1}}; }
inline Floats load_floats(const float* from) {
  Floats v;
  std::memcpy(&v, from, 16);
  return v;
}
inline float bfloat_low(unsigned int pair) { return emulation::bits_to_float(pair << 16); }
inline float bfloat_high(unsigned int pair) { return emulation::bits_to_float(pair & 0xffff0000u); }
inline float bfloat_to_float(unsigned short v) {
  return emulation::bits_to_float((unsigned int)v << 16);
}
inline unsigned short bfloat_of(float x) { return emulation::float_to_bfloat(x); }
inline unsigned int pack_bfloat(float low, float high) {
  return bfloat_of(low) | (unsigned int)bfloat_of(high) << 16;
}
inline unsigned int pack_half(float low, float high) {
  return emulation::float_to_half(low) | (unsigned int)emulation::float_to_half(high) << 16;
}
inline void halves_of_e4m3(unsigned int bytes, unsigned int& low, unsigned int& high) {
  float x[4];
  for (int i = 0; i < 4; ++i) x[i] = emulation::e4m3_to_float(bytes >> 8 * i & 0xff);
  low = pack_half(x[0], x[1]);
  high = pack_half(x[2], x[3]);
}
inline unsigned int join_halves(unsigned int first, unsigned int second, int upper) {
  return upper ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
}
inline void multiply_half(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                          unsigned b0, unsigned b1) {
  emulation::multiply(sums, a0, a1, a2, a3, b0, b1, emulation::half_to_float);
}
inline void multiply_bfloat(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                            unsigned b0, unsigned b1) {
  emulation::multiply(sums, a0, a1, a2, a3, b0, b1, bfloat_to_float);
}
inline float shuffle_xor(float x, int mask) { return emulation::shuffle_xor(x, mask); }
inline int from_lane(int x, int lane) {
  emulation::Warp& w = emulation::warp();
  w.words[emulation::current->thread % 32][0] = (unsigned)x;
  emulation::gather(w.gathering, 32);
  const int found = (int)w.words[lane][0];
  emulation::gather(w.gathering, 32);
  return found;
}
inline unsigned int transposed(unsigned int pair) {
  emulation::Warp& w = emulation::warp();
  const int lane = emulation::current->thread % 32, g = lane / 4, t = lane % 4;
  w.words[lane][0] = pair;
  emulation::gather(w.gathering, 32);
  unsigned int found = 0;
  for (int i = 0; i < 2; ++i)  // row 2t + i, column g
    found |= (w.words[(2 * t + i) * 4 + g / 2][0] >> 16 * (g % 2) & 0xffffu) << 16 * i;
  emulation::gather(w.gathering, 32);
  return found;
}
inline float max_float(float a, float b) { return std::fmax(a, b); }
inline float exp2_of(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float inverse_root(float x) { return 1.0f / std::sqrt(x); }
