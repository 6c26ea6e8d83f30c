// SPDX-License-Identifier: Apache-2.0
#include "libclient/rpc/duplicate_table.h"

#include <algorithm>
#include <utility>

namespace sluice::rpc {

DuplicateTable::Client* DuplicateTable::Find(uint64_t client) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return nullptr;
  idle_.splice(idle_.end(), idle_, found->second.age);
  return &found->second;
}

DuplicateTable::Client* DuplicateTable::Make(uint64_t client) {
  if (clients_.size() >= limits_.clients && !MakeRoomForClient()) return nullptr;
  Client& made = clients_[client];
  made.may_be_back = forgot_clients_;
  made.age = idle_.insert(idle_.end(), client);
  return &made;
}

void DuplicateTable::Forget(Client& client, std::map<uint64_t, Entry>::iterator entry) {
  client.forgotten_below = std::max(client.forgotten_below, entry->first + 1);
  reply_bytes_ -= entry->second.reply.bytes.size();
  --entries_;
  finished_.erase(entry->second.age);
  client.calls.erase(entry);
}

bool DuplicateTable::MakeRoomForClient() {
  const auto quiet = std::ranges::find_if(
      idle_, [&](uint64_t client) { return clients_.at(client).running == 0; });
  if (quiet == idle_.end()) return false;
  Client& client = clients_.at(*quiet);
  while (!client.calls.empty()) Forget(client, client.calls.begin());
  forgot_clients_ = true;
  clients_.erase(*quiet);
  idle_.erase(quiet);
  return true;
}

bool DuplicateTable::MakeRoom() {
  while (entries_ >= limits_.entries || reply_bytes_ > limits_.reply_bytes) {
    if (finished_.empty()) return entries_ < limits_.entries;
    const Token oldest = finished_.front();
    Client& client = clients_.at(oldest.client);
    Forget(client, client.calls.find(oldest.sequence));
  }
  return true;
}

DuplicateTable::Answer DuplicateTable::Arrive(Token token, uint64_t lowest_incomplete,
                                              bool repeated) {
  Client* client = Find(token.client);
  if (client == nullptr && repeated && forgot_clients_) return {Verdict::kForgotten};
  if (client == nullptr) client = Make(token.client);
  if (client == nullptr) return {Verdict::kFull};
  ForgetEnded(*client, lowest_incomplete);
  const auto found = client->calls.find(token.sequence);
  if (found != client->calls.end()) {
    if (found->second.running) return {Verdict::kRunning};
    return {Verdict::kFinished, &found->second.reply};
  }
  if (repeated && client->may_be_back) return {Verdict::kForgotten};
  const bool room = MakeRoom();  // Perhaps at the expense of this very client.
  if (token.sequence < client->forgotten_below) return {Verdict::kForgotten};
  if (!room) return {Verdict::kFull};
  client->calls[token.sequence];
  ++client->running;
  ++entries_;
  return {Verdict::kRun};
}

void DuplicateTable::ForgetEnded(Client& client, uint64_t lowest_incomplete) {
  for (auto entry = client.calls.begin();
       entry != client.calls.end() && entry->first < lowest_incomplete;) {
    const auto next = std::next(entry);
    if (!entry->second.running) Forget(client, entry);
    entry = next;
  }
  client.forgotten_below = std::max(client.forgotten_below, lowest_incomplete);
}

void DuplicateTable::Finish(Token token, Reply reply) {
  Client& client = clients_.at(token.client);
  Entry& entry = client.calls.at(token.sequence);
  entry.running = false;
  entry.reply = std::move(reply);
  entry.age = finished_.insert(finished_.end(), token);
  reply_bytes_ += entry.reply.bytes.size();
  --client.running;
  MakeRoom();
}

void DuplicateTable::Drop(Token token) {
  Client& client = clients_.at(token.client);
  client.calls.erase(token.sequence);
  --client.running;
  --entries_;
}

}  // namespace sluice::rpc
