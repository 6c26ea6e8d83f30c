// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// libsluice's C ABI within one process and one thread, for tests of programs that use it: messages
// wait in transit until Deliver(), and a test can break every path with messages in transit, which
// then arrived or did not, while their sender is told UNKNOWN either way.
namespace fake_sluice {

void Reset();                   // Forget everything. Requires that clients are detached.
void Deliver(size_t messages);  // The oldest so many in transit arrive; their senders get SENT.
size_t InTransit();
void BreakPaths(
    uint64_t random);  // As when a peer's daemon dies: sockets CLOSED, messages in transit UNKNOWN.
void StopDaemon(uint64_t random);      // The same, then everybody gets DETACHED.
void StartDaemon();                    // REATTACHED.
void LimitInTransit(size_t messages);  // A socket's sends beyond it get -EAGAIN.
void DuplicateNext();  // The next message delivered arrives twice, as a broken transport would do.
void LoseNext();       // The next one does not arrive, and its sender is told that it did.
void FlipBitInNext();  // The next one arrives with one bit of its last byte changed.
void FailNext();       // The next one does not arrive, and its sender is told so.
void HoldConnects(bool hold);    // Connects get no answer.
void Degrade(uint16_t service);  // Events of its sockets say DEGRADED_TCP from now on,
void Mend(uint16_t service);     // and no longer.
size_t Buffers();                // Not yet freed.
size_t BadFrees();               // Of what is not a buffer, or not any more.

}  // namespace fake_sluice
