/* SPDX-License-Identifier: Apache-2.0 */
#include <sluice/sluice.h>

int main(void) { return sluice_version() == 0; }
