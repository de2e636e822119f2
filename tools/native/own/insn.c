// SPDX-License-Identifier: MIT
/*
 * insn.c - insn.h's table and the walk along one instruction: prefixes, opcode, ModRM, SIB, displacement, constant.
 *
 * The table has a letter for each opcode:
 *   .  nothing follows     m  ModRM              b  one byte          z  four bytes, two with prefix 66     v  as z, eight with REX.W
 *   B  ModRM and b         Z  ModRM and z        F  ModRM, and b or z of it where reg is 0 or 1 (TEST)      G  ModRM; reg 4: an indirect jump
 *   o  an address          e  ENTER              r  return   i  trap             j J l  short branch, jump, loop   c C K  call, jump, branch
 *   x  unknown, or a prefix (those are taken off before)
 */
#include "insn.h"

#include <stdbool.h>
#include <string.h>

#define INSN_BYTES_MAX 15u

static const char one_byte[257] =
    "mmmmbzxxmmmmbzxx" "mmmmbzxxmmmmbzxx" "mmmmbzxxmmmmbzxx" "mmmmbzxxmmmmbzxx"  // 00
    "xxxxxxxxxxxxxxxx" "................" "xxxmxxxxzZbB...." "jjjjjjjjjjjjjjjj"  // 40
    "BZxBmmmmmmmmmmmm" "..........x....." "oooo....bz......" "bbbbbbbbvvvvvvvv"  // 80
    "BBxrxxBZe.xxixxx" "mmmmxxx.mmmmmmmm" "llllbbbbcCxJ...." "xxxxi.FF......mG"; // c0

static const char two_bytes[257] =
    "mmmmx.....xixmxx" "mmmmmmmmmmmmmmmm" "mmmmxxxxmmmmmmmm" "....xx.xxxxxxxxx"  // 00
    "mmmmmmmmmmmmmmmm" "mmmmmmmmmmmmmmmm" "mmmmmmmmmmmmmmmm" "BBBBmmm.mmxxmmmm"  // 40
    "KKKKKKKKKKKKKKKK" "mmmmmmmmmmmmmmmm" "...mBmxx..xmBmmm" "mmmmmmmmmmBmmmmm"  // 80
    "mmBmBBBm........" "mmmmmmmmmmmmmmmm" "mmmmmmmmmmmmmmmm" "mmmmmmmmmmmmmmmm"; // c0

struct walk {
    const unsigned char *code;
    size_t bytes;
    unsigned at;
    bool is_short, is_wide;  // prefix 66, REX.W
    bool has_address_prefix;
};

static unsigned peek(const struct walk *walk, unsigned ahead) {
    return walk->at + ahead < walk->bytes ? walk->code[walk->at + ahead] : 0;
}

static void prefixes(struct walk *walk) {
    for (;; walk->at++) {
        unsigned byte = peek(walk, 0);
        bool is_segment = byte == 0x2e || byte == 0x36 || byte == 0x3e || byte == 0x26 || byte == 0x64 || byte == 0x65;
        walk->is_short |= byte == 0x66;
        walk->has_address_prefix |= byte == 0x67;
        if (!is_segment && byte != 0x66 && byte != 0x67 && byte != 0xf0 && byte != 0xf2 && byte != 0xf3) {
            break;
        }
    }
    if ((peek(walk, 0) & 0xf0) == 0x40) {
        walk->is_wide = (peek(walk, 0) & 8) != 0;
        walk->at++;
    }
}

/* The letter of an opcode of a VEX or EVEX instruction, by its map. */
static char vector_letter(unsigned map, unsigned opcode) {
    if (map == 1) {
        return two_bytes[opcode] == 'B' || opcode == 0x77 || two_bytes[opcode] == 'm' ? two_bytes[opcode] : 'x';
    }
    return map == 3 ? 'B' : map == 2 || map == 5 || map == 6 ? 'm' : 'x';
}

/* Steps over the opcode; its letter. */
static char opcode(struct walk *walk, unsigned *byte) {
    *byte = peek(walk, 0);
    walk->at++;
    if (*byte == 0xc5 || *byte == 0xc4 || *byte == 0x62) {
        unsigned payload = *byte == 0xc5 ? 1 : *byte == 0xc4 ? 2 : 3;
        unsigned map = *byte == 0xc5 ? 1 : *byte == 0xc4 ? peek(walk, 0) & 31 : peek(walk, 0) & 7;
        walk->at += payload;
        *byte = peek(walk, 0);
        walk->at++;
        return vector_letter(map, *byte);
    }
    if (*byte != 0x0f) {
        return one_byte[*byte];
    }
    *byte = peek(walk, 0);
    walk->at++;
    if (*byte == 0x38 || *byte == 0x3a) {
        walk->at++;
        return *byte == 0x38 ? 'm' : 'B';
    }
    return two_bytes[*byte];
}

/* Steps over ModRM, SIB and displacement; where a RIP-relative one lies, or 0. */
static unsigned modrm(struct walk *walk) {
    unsigned byte = peek(walk, 0), mode = byte >> 6, place = byte & 7;
    walk->at++;
    if (mode == 3) {
        return 0;
    }
    unsigned base = place;
    if (place == 4) {
        base = peek(walk, 0) & 7;
        walk->at++;
    }
    unsigned field = mode == 0 && place == 5 ? walk->at : 0;
    walk->at += mode == 1 ? 1 : mode == 2 || (mode == 0 && base == 5) ? 4 : 0;
    return field;
}

/* How many bytes of constants follow, by the opcode's letter; `reg`: of the ModRM byte. */
static unsigned constant_bytes(const struct walk *walk, char letter, unsigned byte, unsigned reg) {
    unsigned z = walk->is_short && !walk->is_wide ? 2 : 4;
    switch (letter) {
    case 'b': case 'B': case 'j': case 'J': case 'l':
        return 1;
    case 'z': case 'Z':
        return z;
    case 'v':
        return walk->is_wide ? 8 : z;
    case 'F':
        return reg > 1 ? 0 : byte == 0xf6 ? 1 : z;
    case 'o':
        return walk->has_address_prefix ? 4 : 8;
    case 'e':
        return 3;
    case 'c': case 'C': case 'K':
        return 4;
    default:
        return 0;
    }
}

static enum insn_kind kind_of(char letter, unsigned reg) {
    switch (letter) {
    case 'j': case 'K':
        return INSN_BRANCH;
    case 'J': case 'C':
        return INSN_JUMP;
    case 'c':
        return INSN_CALL;
    case 'l':
        return INSN_LOOP;
    case 'r': case 'i':
        return INSN_END;
    case 'G':
        return reg == 4 || reg == 5 ? INSN_END : INSN_PLAIN;
    default:
        return INSN_PLAIN;
    }
}

static void relative_read(struct insn *insn, const unsigned char *code) {
    if (insn->field_bytes == 1) {
        insn->relative = (signed char)code[insn->field];
    } else {
        memcpy(&insn->relative, code + insn->field, sizeof insn->relative);
    }
}

struct insn insn_decode(const unsigned char *code, size_t bytes) {
    struct walk walk = {.code = code, .bytes = bytes};
    struct insn insn = {.kind = INSN_UNKNOWN};
    prefixes(&walk);
    unsigned byte = 0, reg = peek(&walk, 0), field = 0;
    char letter = walk.at < INSN_BYTES_MAX ? opcode(&walk, &byte) : 'x';
    if (letter == 'x') {
        return insn;
    }
    reg = peek(&walk, 0) >> 3 & 7;
    bool has_modrm = letter == 'm' || letter == 'B' || letter == 'Z' || letter == 'F' || letter == 'G';
    if (has_modrm) {
        field = modrm(&walk);
    }
    bool is_direct = letter != '.' && strchr("jJlcCK", letter) != NULL;
    if (is_direct) {
        field = walk.at;
        insn.condition = byte & 15;
    }
    unsigned constant = constant_bytes(&walk, letter, byte, reg);
    unsigned length = walk.at + constant;
    bool is_odd = is_direct && walk.is_short && !walk.is_wide;  // processors disagree on what that is
    if (length > INSN_BYTES_MAX || length > bytes || is_odd || (field != 0 && walk.has_address_prefix)) {
        return insn;
    }
    insn.kind = kind_of(letter, reg);
    insn.length = length;
    insn.field = field;
    insn.field_bytes = field == 0 ? 0 : is_direct ? constant : 4;
    if (field != 0) {
        relative_read(&insn, code);
    }
    return insn;
}
