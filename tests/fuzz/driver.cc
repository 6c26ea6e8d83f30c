// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer. usage: TARGET [RUNS [FIRST_RUN]]
// Run number n always feeds the same bytes, so a failure is repeated with: TARGET 1 n
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr unsigned long kDefaultRuns = 20'000;
constexpr size_t kMaxBytes = 4'096;

std::string RandomBytes(std::mt19937_64& random) {
  std::string bytes(random() % (random() % 8 == 0 ? kMaxBytes : 96), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// A few of the edits that find parsers' mistakes: flips, extreme values, cuts, repeats, insertions.
void Mutate(std::string& bytes, std::mt19937_64& random) {
  constexpr uint64_t kExtremes[] = {0,      1,      0x7f,       0x80,       0xff,
                                    0x7fff, 0xffff, 0x7fffffff, 0xffffffff, ~uint64_t{0}};
  const size_t at = bytes.empty() ? 0 : random() % bytes.size();
  switch (random() % 6) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<char>(random());
      break;
    case 2: {
      const uint64_t value = kExtremes[random() % std::size(kExtremes)];
      const size_t width = size_t{1} << random() % 4;
      for (size_t i = 0; i < width && at + i < bytes.size(); ++i)
        bytes[at + i] = static_cast<char>(value >> (8 * i));
      break;
    }
    case 3: bytes.resize(at); break;
    case 4: bytes.insert(at, bytes.substr(at, random() % 64)); break;
    case 5: bytes.insert(at, RandomBytes(random)); break;
  }
  if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
}

std::string Input(unsigned long run, const std::vector<std::string>& seeds) {
  std::mt19937_64 random(run);
  if (seeds.empty() || random() % 8 == 0) return RandomBytes(random);
  std::string bytes = seeds[random() % seeds.size()];
  // Formats that are rows of records get long rows of good ones.
  for (uint64_t more = random() % 2 * (random() % 12); more > 0; --more)
    bytes += seeds[random() % seeds.size()];
  for (uint64_t edits = random() % 6; edits > 0; --edits) Mutate(bytes, random);
  return bytes;
}

volatile unsigned long current_run = 0;

void SayRunAndDie(int signal_number) {
  char text[64];
  const int bytes = std::snprintf(text, sizeof(text), "in run %lu\n", current_run);
  if (write(STDERR_FILENO, text, static_cast<size_t>(bytes)) < 0) _exit(126);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

int main(int count, char** arguments) {
  const unsigned long runs = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : kDefaultRuns;
  const unsigned long first = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 0;
  const std::vector<std::string> seeds = sluice::fuzz::Seeds();
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    signal(signal_number, SayRunAndDie);
  for (unsigned long run = first; run < first + runs; ++run) {
    const std::string bytes = Input(run, seeds);
    current_run = run;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::fprintf(stderr, "%lu runs, no crash\n", runs);
  return 0;
}
