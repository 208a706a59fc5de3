// Plays calls of what variants have made before their kernels, with a device that is a counter: what is kept, what is not, and when
// it is freed. Prints a line for each check that fails, and the number of checks. PLANTED in the environment is the number of an error.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

inline bool is_planted(int number) {
  static char const* const text = std::getenv("PLANTED");
  return text != nullptr && std::atoi(text) == number;
}
#define PLANTED(number) is_planted(number)

#include "cute_kernels/host/made_key.cpp"
#include "cute_kernels/host/made_store.cpp"

using namespace pyflash;

namespace {

int n_checks = 0;
std::mutex device_mutex;

void check(bool holds, std::string const& what) {
  ++n_checks;
  if (!holds) {
    std::printf("not so: %s\n", what.c_str());
  }
}

// A device whose allocations are numbers.
std::set<intptr_t> alive;
intptr_t n_taken = 0;
int n_notes = 0;
bool is_full = false;
bool refuses_notes = false;

int number_of(void* stream, uint64_t* number) {
  *number = reinterpret_cast<uintptr_t>(stream) + 100;
  return 0;
}
int take(int64_t, void*, LastingMemory* memory) {
  std::scoped_lock const lock(device_mutex);
  if (is_full) {
    return 2;
  }
  memory->data = reinterpret_cast<void*>(++n_taken);
  alive.insert(n_taken);
  return 0;
}
int note_use(LastingMemory const& memory, void*) {
  std::scoped_lock const lock(device_mutex);
  ++n_notes;
  check(alive.count(reinterpret_cast<intptr_t>(memory.data)) == 1, "what is noted is alive");
  return refuses_notes ? 1 : 0;
}
int give_back(LastingMemory const& memory, void*) {
  std::scoped_lock const lock(device_mutex);
  check(alive.erase(reinterpret_cast<intptr_t>(memory.data)) == 1, "it is freed once");
  return 0;
}
constexpr LastingMemoryCalls kCalls{number_of, take, note_use, give_back};

void* stream_of(intptr_t number) { return reinterpret_cast<void*>(number); }

constexpr int64_t kMiB = int64_t(1) << 20;

struct Call {
  MadeKey key{};
  int64_t bytes = kMiB;

  static Call of(uint64_t word, int device = 0, intptr_t stream = 1) {
    Call call;
    call.key = {.device = device, .stream = uint64_t(stream) + 100, .promise = 0, .words = {word}};
    return call;
  }
  void* stream() const { return stream_of(intptr_t(key.stream) - 100); }
};

// What became of a call: "own" memory of torch's, "new" memory that was made, or "found".
std::string made(MadeStore& store, Call const& call, bool is_launched = true) {
  auto use = store.use(call.key, call.bytes, kCalls, call.stream());
  auto const check_alive = [&] {
    std::scoped_lock const lock(device_mutex);
    check(!use || alive.count(reinterpret_cast<intptr_t>(use.data())) == 1,
          "what is used is alive");
  };
  check_alive();
  std::this_thread::yield();
  check_alive();
  std::string const what = !use ? "own" : use.is_made() ? "found" : "new";
  if (is_launched && use) {
    use.launched();
  }
  return what;
}
// As long as it takes until it is kept.
void keep(MadeStore& store, Call const& call) {
  for (int i = 0; i < 3 && made(store, call) != "found"; ++i) {
  }
}

void check_calls() {
  MadeStore store;
  Call const a = Call::of(1);
  check(made(store, a) == "own", "the first call keeps nothing");
  check(made(store, a) == "new", "the second one does");
  check(made(store, a) == "found", "the third one finds it");
  check(store.held().entries == 1 && store.held().bytes == kMiB, "one is held");
  for (Call const& other : {Call::of(2), Call::of(1, 1), Call::of(1, 0, 2)}) {
    check(made(store, other) == "own", "other words, devices and streams do not find it");
    check(made(store, a) == "found", "and it stays");
  }
  Call promised = a;
  promised.key.promise = 7;
  check(made(store, promised) == "own", "nor does who promises");

  Call const failing = Call::of(3);
  made(store, failing);
  size_t const before = alive.size();
  check(made(store, failing, false) == "new", "memory is taken");
  check(alive.size() == before, "what was not launched is freed");
  check(made(store, failing) == "new", "and was not kept");
  check(made(store, failing, false) == "found", "what is there stays, though a launch fails");
  check(made(store, failing) == "found", "so that the next one finds it");
}

void check_bounds() {
  MadeStore store;
  Call large = Call::of(1);
  large.bytes = 65 * kMiB;
  keep(store, large);
  check(store.held().entries == 0, "a large one is not kept");
  for (uint64_t word = 2; word < 7; ++word) {
    Call call = Call::of(word);
    call.bytes = 60 * kMiB;
    keep(store, call);
    check(store.held().bytes <= MadeStore::kMostBytes, "a device holds no more than its bound");
    Call oldest = Call::of(2);
    oldest.bytes = call.bytes;
    check(made(store, oldest) == "found", "what is used stays");
  }
  Call second = Call::of(3);
  second.bytes = 60 * kMiB;
  check(made(store, second) != "found", "what is used least goes");
  Call elsewhere = Call::of(2, 1);
  elsewhere.bytes = 60 * kMiB;
  keep(store, elsewhere);
  check(store.held().bytes > 256 * kMiB - 60 * kMiB, "another device has a bound of its own");
  check(int64_t(alive.size()) >= store.held().entries, "what is held is alive");

  store.set_most_bytes(0);
  made(store, Call::of(9));
  check(made(store, elsewhere) == "found", "a device frees in a call of its own");
  made(store, Call::of(9, 1));
  check(store.held().entries == 0, "nothing is held where nothing may be");
  keep(store, Call::of(10));
  check(store.held().entries == 0, "nor is anything kept");

  store.set_most_bytes(MadeStore::kMostBytes);
  Call const again = Call::of(13);
  keep(store, again);
  store.set_most_bytes(0);
  check(made(store, again) == "found", "what is held is used once more");
  check(made(store, again) == "own" && store.held().entries == 0, "and freed by the next call");

  store.set_most_bytes(MadeStore::kMostBytes);
  keep(store, Call::of(11, 1));
  keep(store, Call::of(11));
  store.set_most_bytes(kMiB / 2);
  made(store, Call::of(12));
  check(store.held().entries == 1, "a device frees its own");
  check(made(store, Call::of(11, 1)) == "found", "and not that of another");
}

void check_what_is_in_use() {
  MadeStore store;
  Call const a = Call::of(1);
  keep(store, a);
  {
    auto const use = store.use(a.key, a.bytes, kCalls, a.stream());
    check(use.is_made(), "it is found");
    store.set_most_bytes(0);
    made(store, Call::of(2));
    check(store.held().entries == 1, "what is in use is not freed");
  }
  made(store, Call::of(2));
  check(store.held().entries == 0, "after it, it is");
  store.set_most_bytes(MadeStore::kMostBytes);

  Call const b = Call::of(11), c = Call::of(12);
  store.set_most_bytes(kMiB);
  keep(store, b);
  made(store, c);
  {
    auto const use = store.use(b.key, b.bytes, kCalls, b.stream());
    check(use && made(store, c) == "own", "what is in use leaves no room");
  }
  check(made(store, c) == "new", "after it, there is some");
  store.set_most_bytes(MadeStore::kMostBytes);

  Call const twice = Call::of(3);
  made(store, twice);
  size_t const before = alive.size();
  int64_t const n_before = store.held().entries;
  {
    auto one = store.use(twice.key, twice.bytes, kCalls, twice.stream());
    auto other = store.use(twice.key, twice.bytes, kCalls, twice.stream());
    check(!one.is_made() && !other.is_made(), "what is not in the stream yet is not found");
    check(one.data() != other.data(), "two calls make it in two places");
    one.launched();
    other.launched();
  }
  check(alive.size() == before + 1 && store.held().entries == n_before + 1, "one of them stays");
  check(made(store, twice) == "found", "and is found");

  is_full = true;
  Call const none = Call::of(4);
  made(store, none);
  check(made(store, none) == "own", "a device without memory");
  for (int i = 0; i < 1000; ++i) {
    made(store, none);
  }
  is_full = false;
  check(made(store, none) == "new", "is asked again, since nothing was taken");
}

// A stream frees what it made, and what others made and have noted.
void check_streams() {
  MadeStore store;
  Call const a = Call::of(1), b = Call::of(2), other = Call::of(3, 0, 2);
  int const before = n_notes;
  keep(store, a);
  keep(store, b);
  check(n_notes == before, "one stream takes no notes");
  Call const elsewhere = Call::of(4, 1, 2);
  keep(store, elsewhere);
  check(n_notes == before, "nor does one of each device");
  keep(store, other);
  check(n_notes > before, "two streams do");
  check(made(store, b) == "found", "what is used is noted");
  store.set_most_bytes(0);
  made(store, Call::of(5, 0, 2));
  check(store.held().entries == 2, "a stream frees its own, and what is noted");
  check(made(store, a) == "found", "of another, nobody knows when it is over");
  made(store, Call::of(5, 0, 2));
  check(store.held().entries == 1, "until it is used again");

  store.set_most_bytes(MadeStore::kMostBytes);
  keep(store, a);
  refuses_notes = true;
  check(made(store, a) == "found", "a use of which the device takes no note");
  refuses_notes = false;
  store.set_most_bytes(0);
  made(store, Call::of(6, 0, 2));
  check(store.held().entries == 2, "is over for nobody else");
  made(store, Call::of(6));
  check(store.held().entries == 1, "but for its own stream");
}

void check_promises() {
  MadeStore store;
  Call promised = Call::of(1);
  promised.key.promise = 5;
  keep(store, promised);
  Call other = promised;
  other.key.promise = 6;
  keep(store, other);
  Call const plain = Call::of(1);
  keep(store, plain);
  store.forget(0);
  check(made(store, plain) == "found", "who promises nothing breaks nothing");
  store.forget(5);
  size_t const before = alive.size();
  check(made(store, promised) != "found", "what was forgotten is not found");
  check(alive.size() <= before, "it is freed by the next call");
  check(made(store, other) == "found" && made(store, plain) == "found", "others stay");
}

void check_threads() {
  MadeStore store;
  store.set_most_bytes(3 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 20000; ++i) {
        made(store, Call::of(random() % 5, int(random() % 2), 1 + random() % 2), random() % 8 != 0);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  check(store.held().bytes <= 2 * 3 * kMiB, "threads together keep to the bound");
}

// Every number of a call, changed by itself.
void check_keys() {
  int const row = 0, other_row = 0;
  float table[8]{};
  variant::Arguments captured{};
  captured.reals = {0.0, 1.5};
  captured.integers = {3, 4};
  variant::TensorArgument const tensor{
      .data = table, .rank = 2, .extents = {2, 4}, .strides = {4, 1}};
  MadeBefore made{.n_ints = 8, .is_of_host = true, .numbers = {}};
  Promise const nobody, one{1, {0}}, two{2, {0}}, written{1, {1}};

  auto const key = [&](bool of_tensors, Promise const& promise) {
    return made_key(&row, of_tensors, made, captured, promise);
  };
  auto const first = key(false, nobody);
  check(first.has_value() && first == key(false, nobody), "the same call has the same key");
  check(made_key(&other_row, false, made, captured, nobody) != first, "other rows have others");
  for (int& number : made.numbers) {
    ++number;
    check(key(false, nobody) != first, "so have other numbers of the problem");
    --number;
  }
  for (double& real : captured.reals) {
    double const before = real;
    for (double const other : {before + 1e-9, -before - 0.0}) {
      real = other;
      check(key(false, nobody) != first, "so have other floats, 0 and -0 among them");
    }
    real = before;
  }
  for (int64_t& integer : captured.integers) {
    integer += int64_t(1) << 32;
    check(key(false, nobody) != first, "so have other integers");
    integer -= int64_t(1) << 32;
  }
  std::swap(captured.integers[0], captured.integers[1]);
  check(key(false, nobody) != first, "and these in another order");
  std::swap(captured.integers[0], captured.integers[1]);
  made.is_of_host = false;
  check(!key(false, one), "what the device alone knows has no key");
  made.is_of_host = true;

  check(key(true, nobody) == first, "no tensor is captured");
  captured.tensors = {tensor};
  check(key(false, nobody) == first, "a tensor that nothing is made of does not count");
  check(!key(true, nobody), "one that something is made of needs a promise");
  auto const promised = key(true, one);
  check(promised && promised == key(true, one), "with it, there is a key");
  check(promised->promise == 1, "which is of the promise");
  check(key(true, two) != promised, "another one's is another");
  check(key(true, written) != promised, "so is that of a tensor that was written");
  auto& of = captured.tensors[0];
  of.data = table + 1;
  check(key(true, one) != promised, "one elsewhere");
  of = tensor;
  for (int64_t* numbers : {of.extents, of.strides}) {
    for (int axis = 0; axis < of.rank; ++axis) {
      ++numbers[axis];
      check(key(true, one) != promised, "of another shape, or other strides");
      --numbers[axis];
    }
  }
}

}  // namespace

int main() {
  check_calls();
  check_bounds();
  check_what_is_in_use();
  check_streams();
  check_promises();
  check_threads();
  check_keys();
  std::printf("%d checks\n", n_checks);
}
