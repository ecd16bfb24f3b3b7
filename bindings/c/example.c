// A made-up engine of one block and two heads, and how it writes its trace. Also C++.
//     cc -std=c99 example.c -o example && ./example port.safetensors [step | prefill] [ENGINE]
#include "gander_trace.h"

enum { TOKENS = 3, HEADS = 2, SIZE = 4, VOCAB = 9 };

// What a real engine computes: here whole numbers / 256, told apart by `first`.
static const float *numbers(float *x, int first, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = (float)(first + (int)i) / 256;
    return x;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: %s FILE [step | prefill] [ENGINE]\n", argv[0]), 2;
    const uint32_t tokens[TOKENS] = {0, 7, 7};
    gander_run run;
    memset(&run, 0, sizeof run);
    run.model = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    run.tokens = tokens;
    run.token_count = TOKENS;
    run.path = argc > 2 ? argv[2] : "step";
    run.engine = argc > 3 ? argv[3] : "my port";
    run.dtype = "float32";
    run.start = "random:7";

    gander_trace trace;
    gander_begin(&trace, &run);
    const size_t rows = strcmp(run.path, "step") ? TOKENS : 1;  // of a call
    const size_t decay[] = {rows, HEADS, SIZE}, logits[] = {rows, VOCAB}, state[] = {HEADS, SIZE, SIZE};
    for (size_t t = 0; t < TOKENS; t += rows) {  // one pass is one call of the engine
        float x[TOKENS * HEADS * SIZE * SIZE];
        gander_add(&trace, "blocks.0.att.w", 3, decay, numbers(x, (int)t * HEADS * SIZE, rows * HEADS * SIZE));
        gander_add(&trace, "blocks.0.state.wkv", 3, state, numbers(x, -100 * (int)(t + rows), HEADS * SIZE * SIZE));
        gander_add(&trace, "logits", 2, logits, numbers(x, 1000 + (int)t * VOCAB, rows * VOCAB));
    }
    const int failed = gander_write(&trace, argv[1]);
    if (failed) fprintf(stderr, "%s\n", trace.error);
    gander_free(&trace);
    return failed ? 1 : 0;
}
