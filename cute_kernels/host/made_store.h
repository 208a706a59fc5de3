// What variants have made before their kernels, kept for calls that need the same: of each device, the most recently used, within a
// bound. It is kept from the second call on, so that lengths which come once cost no memory. Memory is for the stream that it was made
// in, and for no other: what a stream has in order needs no waiting. Nor do notes of uses, where a device has one stream alone.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cute_kernels/lasting_memory.h"

namespace pyflash {

// Equal keys stand for what is made alike, to the bit.
struct MadeKey {
  int device = 0;
  uint64_t stream = 0;  // LastingMemoryCalls::number_of
  int64_t promise = 0;  // what says that captured tensors stay as they are; 0: there are none
  std::vector<uint64_t> words;

  friend bool operator==(MadeKey const&, MadeKey const&) = default;
};

class MadeStore {
 public:
  static constexpr int64_t kMostBytes = int64_t(256) << 20;        // of a device
  static constexpr int64_t kMostBytesOfEntry = int64_t(64) << 20;  // a larger one is not kept

  // Some memory, while a call launches what makes it and what reads it.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept;
    Use& operator=(Use&&) = delete;
    // Without `launched` what was to be made is forgotten.
    ~Use();

    explicit operator bool() const { return entry_ != nullptr; }
    void* data() const;
    bool is_made() const { return is_made_; }
    // All launches are in the stream: others may use the memory after them.
    void launched() { is_launched_ = true; }

   private:
    friend MadeStore;
    struct Entry;
    MadeStore* store_ = nullptr;
    std::shared_ptr<Entry> entry_;
    void* stream_ = nullptr;
    bool is_made_ = false;
    bool is_noted_ = false;  // another stream may free it
    bool is_launched_ = false;
  };

  // The memory of a key, or from its second call on new memory of so many bytes for it; neither where it would be too much, or the
  // device has none. The current device is the key's, `stream` is the key's and captures no graph.
  Use use(MadeKey const& key, int64_t bytes, LastingMemoryCalls const& calls, void* stream);

  // Forgets what was made on a promise. It is freed by a later call of the device, since a stream is needed for that.
  void forget(int64_t promise);

  // A device holds so much from now on, at most; what is more is freed by its later calls.
  void set_most_bytes(int64_t bytes);

  struct Held {
    int64_t entries;
    int64_t bytes;
  };
  Held held() const;

 private:
  using Entry = Use::Entry;
  using Entries = std::list<std::shared_ptr<Entry>>;

  static constexpr size_t kMostSeen = 64;

  bool was_seen(MadeKey const& key);
  // Entries that nobody uses, and that a key's stream may free, leave the store: the forgotten ones, and then the oldest, until the
  // key's device has room for so many bytes.
  Entries make_room(MadeKey const& key, int64_t bytes);
  bool has_several_streams(MadeKey const& key);
  void forget(Entry& entry);
  void end(Use& use);

  mutable std::mutex mutex_;
  Entries entries_;                            // most recently used first
  std::deque<MadeKey> seen_;                   // that came once, newest first
  int64_t n_forgotten_ = 0;                    // entries of broken promises
  std::map<int, int64_t> bytes_;               // of each device, with what is not made yet
  std::map<int, std::set<uint64_t>> streams_;  // of each device, two at most
  int64_t most_bytes_ = kMostBytes;
};

// That of the process.
MadeStore& made_store();

}  // namespace pyflash
