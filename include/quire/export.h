// SPDX-License-Identifier: MIT
/* quire/export.h - the visibility of the library's names; included by every other header. */
#ifndef QUIRE_EXPORT_H
#define QUIRE_EXPORT_H

#define QUIRE_API __attribute__((visibility("default")))

#endif
