// Instructions of the device for decoder.cu: compute capability 9.0 and newer.

#define DEVICE __device__
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads, 1)

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

struct Words { unsigned int w[4]; };
struct Floats { float f[4]; };
struct Pair { float x, y; };

DEVICE inline int thread_index() { return threadIdx.x; }
DEVICE inline int block_index() { return blockIdx.x; }
DEVICE inline int num_blocks() { return gridDim.x; }

DEVICE inline unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

DEVICE inline unsigned int shared_address(const void* p) {
  return (unsigned int)__cvta_generic_to_shared(p);
}

// A wait that takes so long is an error of ours, or another block that never runs: end the kernel
// rather than hang the device.
constexpr unsigned long long MAX_WAIT_NS = 10000000000ull;

DEVICE inline unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

struct Deadline {
  unsigned long long begin = 0;
  unsigned int polls = 0;
  DEVICE inline void check() {
    if ((++polls & 4095u) != 0) return;
    if (begin == 0) begin = now_ns();
    else if (now_ns() - begin > MAX_WAIT_NS) asm volatile("trap;");
  }
};

DEVICE inline void block_sync() { __syncthreads(); }
DEVICE inline void warp_sync() { __syncwarp(); }
// Registers move from the producer's four warps to the consumers': 128 * 56 + 256 * 224 <= 64 Ki.
DEVICE inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 56;"); }
DEVICE inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 224;"); }
// All consumer warps; the producer takes no part.
DEVICE inline void consumer_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

DEVICE inline void init_barrier(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
DEVICE inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE inline void arrive_barrier(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE inline void expect_bytes(unsigned long long* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
DEVICE inline bool has_passed(unsigned long long* barrier, int parity) {
  unsigned int done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done;
}
DEVICE inline void wait_barrier(unsigned long long* barrier, int parity) {
  Deadline deadline;
  while (!has_passed(barrier, parity)) deadline.check();
}

// Weights are read once in a step: they are the first to leave L2.
DEVICE inline unsigned long long evict_first_policy() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// `bytes` and both addresses are multiples of 16.
DEVICE inline void copy_bulk(unsigned char* to, const unsigned char* from, int bytes,
                             unsigned long long* barrier, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Into L2; `bytes` and the address are multiples of 16.
DEVICE inline void prefetch_bulk(const unsigned char* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// The line of this address into L2.
DEVICE inline void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

DEVICE inline void wait_for_count(const unsigned int* counter, unsigned int count) {
  Deadline deadline;
  unsigned int found;
  while (true) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
    if (found >= count) return;
    deadline.check();
  }
}
// Release covers what this block's other threads wrote before a barrier that this one has passed.
DEVICE inline void release_add(unsigned int* counter, unsigned int number) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(number) : "memory");
}
// What other blocks have written in this launch: past L1, which does not see it.
DEVICE inline Words load_shared_data(const unsigned short* from) {
  Words v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(from)
               : "memory");
  return v;
}
DEVICE inline unsigned short load_shared_data16(const unsigned short* from) {
  unsigned short v;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return v;
}
DEVICE inline Pair load_shared_pair(const float* from) {
  Pair v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
  return v;
}
DEVICE inline Pair load_pair(const float* from) {
  const float2 v = *(const float2*)from;
  return {v.x, v.y};
}
DEVICE inline void store_pair(float* to, const Pair& v) { *(float2*)to = make_float2(v.x, v.y); }

// Shared memory of the block, 16 bytes.
DEVICE inline Words load_words(const unsigned char* from) {
  const uint4 v = *(const uint4*)from;
  return {{v.x, v.y, v.z, v.w}};
}
DEVICE inline void store_words(unsigned char* to, const Words& v) {
  *(uint4*)to = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}
DEVICE inline Words zero_words() { return {{0, 0, 0, 0}}; }
DEVICE inline Floats ones() { return {{1.0f, 1.0f, 1.0f, 1.0f}}; }
DEVICE inline Floats load_floats(const float* from) {
  const float4 v = *(const float4*)from;
  return {{v.x, v.y, v.z, v.w}};
}

DEVICE inline float bfloat_low(unsigned int pair) { return __uint_as_float(pair << 16); }
DEVICE inline float bfloat_high(unsigned int pair) { return __uint_as_float(pair & 0xffff0000u); }
DEVICE inline float bfloat_to_float(unsigned short v) { return __uint_as_float((unsigned int)v << 16); }
DEVICE inline unsigned int pack_bfloat(float low, float high) {
  unsigned int v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
DEVICE inline unsigned short bfloat_of(float x) { return (unsigned short)pack_bfloat(x, 0.0f); }
// Saturates: float16 ends at 65504.
DEVICE inline unsigned int pack_half(float low, float high) {
  unsigned int v;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
// The lower two bytes, and the upper two.
DEVICE inline void halves_of_e4m3(unsigned int bytes, unsigned int& low, unsigned int& high) {
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n"
      " cvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
}
// The lower halves of both, or the upper ones.
DEVICE inline unsigned int join_halves(unsigned int first, unsigned int second, int upper) {
  return upper ? __byte_perm(first, second, 0x7632) : __byte_perm(first, second, 0x5410);
}

// `sums += a [16, 16] b [16, 8]`, in the layout of mma.m16n8k16.
DEVICE inline void multiply_half(float (&sums)[4], unsigned int a0, unsigned int a1,
                                 unsigned int a2, unsigned int a3, unsigned int b0,
                                 unsigned int b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE inline void multiply_bfloat(float (&sums)[4], unsigned int a0, unsigned int a1,
                                   unsigned int a2, unsigned int a3, unsigned int b0,
                                   unsigned int b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
      " {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE inline float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE inline int from_lane(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
// Of 8 x 8 numbers of 16 bits, of which a thread has (row g, columns 2t and 2t + 1).
DEVICE inline unsigned int transposed(unsigned int pair) {
  unsigned int v;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(v) : "r"(pair));
  return v;
}
DEVICE inline float max_float(float a, float b) { return fmaxf(a, b); }
DEVICE inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE inline float inverse_root(float x) { return rsqrtf(x); }
