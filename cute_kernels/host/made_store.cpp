#include "cute_kernels/host/made_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pyflash {

struct MadeStore::Use::Entry {
  MadeKey key;
  int64_t bytes;
  LastingMemoryCalls calls;
  LastingMemory memory{};
  int users = 0;
  bool is_noted = false;  // all uses
  bool is_forgotten = false;
};

MadeStore::Use::Use(Use&& other) noexcept
    : store_(other.store_),
      entry_(std::move(other.entry_)),
      stream_(other.stream_),
      is_made_(other.is_made_),
      is_noted_(other.is_noted_),
      is_launched_(other.is_launched_) {}

MadeStore::Use::~Use() {
  if (entry_) {
    store_->end(*this);
  }
}

void* MadeStore::Use::data() const { return entry_->memory.data; }

MadeStore::Use MadeStore::use(MadeKey const& key, int64_t bytes, LastingMemoryCalls const& calls,
                              void* stream) {
  Use use;
  Entries leaving;
  {
    std::scoped_lock const lock(mutex_);
    use.is_noted_ = has_several_streams(key);
    auto const found = std::find_if(entries_.begin(), entries_.end(), [&](auto const& entry) {
      return !entry->is_forgotten && entry->bytes == bytes && entry->key == key;
    });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      use.entry_ = *found;
      use.is_made_ = true;
      ++use.entry_->users;
      if (n_forgotten_ > 0 || bytes_[key.device] > most_bytes_) {
        leaving = make_room(key, 0);
      }
      if (bytes_[key.device] > most_bytes_) {
        forget(*use.entry_);  // the next call frees it, even one that needs the same
      }
    } else {
      bool const is_wanted = bytes <= std::min(kMostBytesOfEntry, most_bytes_) && was_seen(key);
      leaving = make_room(key, is_wanted ? bytes : 0);
      if (is_wanted && bytes_[key.device] + bytes <= most_bytes_) {
        bytes_[key.device] += bytes;
        use.entry_ = std::make_shared<Entry>(Entry{.key = key, .bytes = bytes, .calls = calls});
      }
    }
  }
  for (auto const& entry : leaving) {
    entry->calls.give_back(entry->memory, stream);
  }
  use.store_ = this;
  use.stream_ = stream;
  if (use.entry_ && !use.is_made_ && calls.take(bytes, stream, &use.entry_->memory) != 0) {
    std::scoped_lock const lock(mutex_);
    bytes_[key.device] -= bytes;
    use.entry_.reset();
  }
  return use;
}

bool MadeStore::was_seen(MadeKey const& key) {
  auto const found = std::find(seen_.begin(), seen_.end(), key);
  bool const was_seen = found != seen_.end();
  if (was_seen) {
    seen_.erase(found);
  } else if (seen_.size() == kMostSeen) {
    seen_.pop_back();
  }
  seen_.push_front(key);
  return was_seen;
}

bool MadeStore::has_several_streams(MadeKey const& key) {
  std::set<uint64_t>& streams = streams_[key.device];
  if (streams.size() < 2) {
    streams.insert(key.stream);
  }
  return streams.size() == 2;
}

MadeStore::Entries MadeStore::make_room(MadeKey const& key, int64_t bytes) {
  Entries leaving;
  int64_t& held = bytes_[key.device];
  auto const leave = [&](bool forgotten_alone) {
    for (auto next = entries_.end(); next != entries_.begin();) {
      auto const at = std::prev(next);
      Entry const& entry = **at;
      bool const is_ordered = entry.is_noted || entry.key.stream == key.stream;
      bool const may_leave = entry.key.device == key.device && entry.users == 0 && is_ordered;
      bool const is_asked = forgotten_alone ? entry.is_forgotten : held + bytes > most_bytes_;
      if (may_leave && is_asked) {
        held -= entry.bytes;
        n_forgotten_ -= entry.is_forgotten;
        leaving.splice(leaving.begin(), entries_, at);
      } else {
        next = at;
      }
    }
  };
  leave(true);
  leave(false);
  return leaving;
}

void MadeStore::end(Use& use) {
  Entry& entry = *use.entry_;
  {
    std::scoped_lock const lock(mutex_);
    // NOTE: under the lock, so that a note is of all uses that ended before it.
    entry.is_noted = use.is_noted_ && entry.calls.note_use(entry.memory, use.stream_) == 0;
    if (use.is_made_) {
      --entry.users;
      return;
    }
    // Another thread may have made the same for this stream.
    bool const is_new = std::none_of(entries_.begin(), entries_.end(), [&](auto const& other) {
      return !other->is_forgotten && other->bytes == entry.bytes && other->key == entry.key;
    });
    if (use.is_launched_ && is_new) {
      entries_.push_front(use.entry_);
      return;
    }
    bytes_[entry.key.device] -= entry.bytes;
  }
  entry.calls.give_back(entry.memory, use.stream_);
}

void MadeStore::forget(int64_t promise) {
  std::scoped_lock const lock(mutex_);
  for (auto const& entry : entries_) {
    if (promise != 0 && entry->key.promise == promise && !entry->is_forgotten) {
      forget(*entry);
    }
  }
}

void MadeStore::forget(Entry& entry) {
  entry.is_forgotten = true;
  ++n_forgotten_;
}

void MadeStore::set_most_bytes(int64_t bytes) {
  std::scoped_lock const lock(mutex_);
  most_bytes_ = bytes;
}

MadeStore::Held MadeStore::held() const {
  std::scoped_lock const lock(mutex_);
  Held held{0, 0};
  for (auto const& entry : entries_) {
    ++held.entries;
    held.bytes += entry->bytes;
  }
  return held;
}

MadeStore& made_store() {
  static auto& store = *new MadeStore;  // streams and devices end before it would
  return store;
}

}  // namespace pyflash
