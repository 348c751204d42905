// Runs the megakernel on one CPU thread: see megakernel_emulation.h.

#include "megakernel_emulation.h"

#include <cstddef>

#include "decoder.cu"

namespace {

const Step* running;

void run_fiber() {
  decode(*running);
  emulation::current->is_done = true;
  emulation::has_moved = true;
  emulation::yield();
}

void resume(emulation::Fiber& fiber) {
  if (_setjmp(emulation::scheduler)) return;
  if (fiber.has_begun) _longjmp(fiber.place, 1);
  fiber.has_begun = true;
  setcontext(&fiber.start);
}

}  // namespace

// Of the fields that the tables name: see emulated_megakernel.py, which writes the header.
struct TableField {
  const char* name;
  std::size_t offset;
  std::size_t num_bytes;
};
extern "C" {
extern const TableField table_fields[] = {
#include "table_fields.h"
};
extern const int num_table_fields = sizeof table_fields / sizeof table_fields[0];
}

// Returns 0, or 1 in a deadlock. `seed`: of the order in which copies arrive and blocks run.
extern "C" int emulate(const void* step, int size_of_step, int num_blocks, int shared_bytes,
                       unsigned long long seed) {
  using namespace emulation;
  if (size_of_step != (int)sizeof(Step)) return 2;
  Step copy;
  std::memcpy(&copy, step, sizeof copy);
  running = &copy;
  randomness = seed;
  blocks.clear();
  copies.clear();
  fibers = std::vector<Fiber>((size_t)num_blocks * emulation::THREADS);
  // Not set to zero: of 100 MB some pages are used.
  std::unique_ptr<unsigned char[]> stacks(new unsigned char[fibers.size() * STACK]);
  for (int b = 0; b < num_blocks; ++b) {
    blocks.push_back(std::make_unique<Block>());
    blocks.back()->memory.assign(shared_bytes, 0xff);  // NaN in every type
  }
  for (size_t i = 0; i < fibers.size(); ++i) {
    Fiber& fiber = fibers[i];
    fiber.block = (int)i / emulation::THREADS;
    fiber.thread = (int)i % emulation::THREADS;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = stacks.get() + i * STACK;
    fiber.start.uc_stack.ss_size = STACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, run_fiber, 0);
  }
  int idle = 0;
  while (true) {
    bool is_any_left = false;
    has_moved = false;
    const int first = draw() % num_blocks;
    for (int b = 0; b < num_blocks; ++b)
      for (int t = 0; t < emulation::THREADS; ++t) {
        Fiber& fiber = fibers[(size_t)((first + b) % num_blocks) * emulation::THREADS + t];
        if (fiber.is_done) continue;
        is_any_left = true;
        if (fiber.is_due != nullptr && !fiber.is_due(fiber.condition)) continue;
        current = &fiber;
        resume(fiber);
      }
    if (!is_any_left) break;
    // Memory is slower than the threads: a read that does not wait finds what was there before.
    if (!copies.empty() && draw() % 2 == 0) arrive_late();
    idle = has_moved || !copies.empty() ? 0 : idle + 1;
    if (idle > 10) return 1;
  }
  return 0;
}
