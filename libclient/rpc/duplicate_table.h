// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <unordered_map>

namespace sluice::rpc {

// What a server remembers of calls with an idempotency token, so that one that comes again is not
// carried out again: it gets the first one's reply. Memory is bounded: finished calls are forgotten
// when their client says that they have ended, and otherwise the oldest first when there is no
// room; what was forgotten is never carried out again, its client is told so.
// Invariant: of one token, kRun is said at most once, unless a call that may have come before is
// not declared as `repeated`. Thread: its server's.
class DuplicateTable {
 public:
  struct Limits {
    uint32_t clients = 4096;
    uint64_t entries = 1 << 20;
    uint64_t reply_bytes = 64 << 20;
  };
  struct Token {
    uint64_t client = 0;
    uint64_t sequence = 0;
  };
  struct Reply {
    uint32_t code = 0;
    std::string bytes;
  };
  enum class Verdict {
    kRun,        // New: carry it out, then say Finish() or Drop().
    kRunning,    // It is being carried out.
    kFinished,   // `reply` points at what was answered, until the next call of this table.
    kForgotten,  // It may have been carried out, and is not remembered.
    kFull,       // Everything remembered is being carried out: no room.
  };
  struct Answer {
    Verdict verdict;
    const Reply* reply = nullptr;
  };

  explicit DuplicateTable(Limits limits) : limits_(limits) {}

  // A call came. All of its client's calls below `lowest_incomplete` have ended. repeated: it may
  // have come before.
  Answer Arrive(Token token, uint64_t lowest_incomplete, bool repeated);

  void Finish(Token token, Reply reply);  // Requires kRun before.
  void Drop(Token token);                 // It was not carried out after all: as if it never came.

  uint64_t entries() const { return entries_; }
  uint64_t reply_bytes() const { return reply_bytes_; }
  size_t clients() const { return clients_.size(); }

 private:
  struct Entry {
    bool running = true;
    Reply reply;
    std::list<Token>::iterator age;  // In finished_, unless running.
  };
  struct Client {
    uint64_t forgotten_below = 0;  // Sequences below may have been carried out.
    uint32_t running = 0;
    bool may_be_back = false;  // It may have been forgotten before.
    std::map<uint64_t, Entry> calls;
    std::list<uint64_t>::iterator age;  // In idle_.
  };

  Client* Find(uint64_t client);
  Client* Make(uint64_t client);
  void Forget(Client& client, std::map<uint64_t, Entry>::iterator entry);
  void ForgetEnded(Client& client, uint64_t lowest_incomplete);
  bool MakeRoom();
  bool MakeRoomForClient();

  Limits limits_;
  std::unordered_map<uint64_t, Client> clients_;
  std::list<uint64_t> idle_;   // Clients, the one heard of last at the end.
  std::list<Token> finished_;  // The oldest first.
  uint64_t entries_ = 0;
  uint64_t reply_bytes_ = 0;
  bool forgot_clients_ = false;
};

}  // namespace sluice::rpc
