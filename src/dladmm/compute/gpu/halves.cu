// Numbers as two float16 parts, and where they lie for the tensor cores.
//
// DEEP numbers of a row are scaled by the power of two that brings their largest to between 2^14 and 2^15. The ``high``
// part of a number is the nearest float16 number and its ``rest`` that of what is left: together 22 bits of the large
// entries, and of the small ones what lies above 2^-40 of the largest.
//
// A piece is TALL rows of DEEP numbers in 16 KB: of each row the high parts, then the rests, 128 bytes whose 16-byte
// units lie in the order ^ (row % 8). So tensor cores read it from shared memory, and it is copied as it is.

typedef long long whole;

constexpr int TALL = 128, DEEP = 32;
constexpr unsigned LINE = 128, PIECE = TALL * LINE;
