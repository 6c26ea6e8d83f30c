// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace sluice_ps {

// How many bytes the next message carries. Lognormal, because its two parameters meet the two
// figures that are known of the training workload, a mean of 20 KB and a 99th percentile of 50 KB:
//
//   mean = exp(mu + sigma^2 / 2),  p99 = exp(mu + z sigma) with z = 2.3263,  so
//   sigma = z - sqrt(z^2 - 2 ln(p99 / mean)) = 0.434,  mu = ln(mean) - sigma^2 / 2;  the median
//   is 18.2 KB.
//
// Cut at ten times the mean, which one message in ten million would exceed.
class SizeModel {
 public:
  SizeModel(double mean_bytes, double p99_bytes)
      : sigma_(kZ99 - std::sqrt(kZ99 * kZ99 - 2 * std::log(p99_bytes / mean_bytes))),
        normal_(std::log(mean_bytes) - sigma_ * sigma_ / 2, sigma_),
        max_bytes_(10 * mean_bytes) {}

  // Whether a lognormal with these figures exists.
  static bool Possible(double mean_bytes, double p99_bytes) {
    return mean_bytes >= 1 && p99_bytes >= mean_bytes &&
           p99_bytes <= mean_bytes * std::exp(kZ99 * kZ99 / 2);
  }

  template <typename Engine>
  uint32_t Next(Engine& random) {
    return static_cast<uint32_t>(std::min(std::exp(normal_(random)), max_bytes_));
  }

  uint32_t max_bytes() const { return static_cast<uint32_t>(max_bytes_); }

 private:
  static constexpr double kZ99 = 2.3263478740408408;
  double sigma_;
  std::normal_distribution<double> normal_;
  double max_bytes_;
};

}  // namespace sluice_ps
