/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into a process, moves its wall clock by the seconds that the file $SLUICE_TEST_CLOCK
 * holds at that moment. Other clocks, and the rest of the machine, keep their time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t OffsetSeconds(void) {
  static int fd = -2;
  char text[32] = {0};
  if (fd == -2) {
    const char *path = getenv("SLUICE_TEST_CLOCK");
    fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  }
  if (fd < 0 || pread(fd, text, sizeof(text) - 1, 0) <= 0) return 0;
  return (time_t)strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const long status = syscall(SYS_clock_gettime, clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += OffsetSeconds();
  return (int)status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}
