/* RWKV-7 "Goose" in C99. Every array is float32 and row-major; T tokens, H heads of N, D = H·N, F the channel mix's
 * width, V vocabulary rows, R a LoRA's rank. */
#ifndef RWKV7_H
#define RWKV7_H

typedef struct {
    int L, D, H, N, F, V;
    float ln_eps, gn_eps;
} Config;

/* Matrices are [out, in], but for the LoRA pairs, which are [in, out]. */
typedef struct {
    const float *ln1_w, *ln1_b, *ln2_w, *ln2_b;                      /* (D) */
    const float *x_r, *x_w, *x_k, *x_v, *x_a, *x_g;                  /* (D) token shift's mixes */
    const float *w0, *w1, *w2, *a0, *a1, *a2, *v0, *v1, *v2, *g1, *g2; /* (D), (D, R), (R, D) */
    const float *k_k, *k_a, *r_k;                                    /* (H, N) */
    const float *receptance, *key, *value, *output;                  /* (D, D) */
    const float *lnx_w, *lnx_b;                                      /* (D) GroupNorm's */
    const float *ffn_x_k, *ffn_key, *ffn_value;                      /* (D), (F, D), (D, F) */
    int rank_w, rank_a, rank_v, rank_g;
} Block;

typedef struct {
    Config c;
    const float *emb, *ln0_w, *ln0_b, *ln_out_w, *ln_out_b, *head; /* (V, D), (D) …, (V, D) */
    Block *blocks;
} Model;

/* What one text leaves behind for its next token. */
typedef struct {
    float *att_x; /* (L, D)       each block's last ln1(x) */
    float *wkv;   /* (L, H, N, N) [value, key] */
    float *ffn_x; /* (L, D)       each block's last ln2(x) */
} State;

/* Called with each named value of a run: rows (T, a), or (T, a, b) where b is not 0. */
typedef void (*See)(void *seer, int block, const char *name, const float *x, int T, int a, int b);

extern int threads; /* for the matrix products, if compiled with OpenMP */

void *reserve(long count, long size); /* calloc that ends the program when there is no memory */

void layer_norm(float *y, const float *x, const float *weight, const float *bias, int T, int D, float eps);
void embedding(float *x, const int *tokens, const float *emb, const float *w, const float *b, int T, int D, float eps);
void token_shift(float *y, const float *x, const float *previous, const float *mix, int T, int D);
void linear(float *y, const float *x, const float *weight, int T, int in, int out);
void lora(float *y, const float *x, const float *down, const float *up, float (*f)(float), int T, int D, int R);
void decay(float *w, const float *xw, const float *w0, const float *w1, const float *w2, int T, int D, int R);
void in_context_rate(float *a, const float *xa, const float *a0, const float *a1, const float *a2, int T, int D, int R);
void gate(float *g, const float *xg, const float *g1, const float *g2, int T, int D, int R);
void l2norm(float *kk, const float *k, const float *k_k, int T, int H, int N);
void k_update(float *out, const float *k, const float *a, const float *k_a, int T, int D);
void v_first(float *out, const float *v, const float *first, const float *xv, const float *v0, const float *v1,
             const float *v2, int T, int D, int R);
void wkv7(float *y, float *S, const float *r, const float *w, const float *k, const float *v, const float *kk,
          const float *a, int T, int H, int N);
void group_norm(float *o, const float *y, const float *weight, const float *bias, int T, int H, int N, float eps);
void bonus(float *b, const float *r, const float *k, const float *v, const float *r_k, int T, int H, int N);
void gate_correction(float *o, const float *norm, const float *b, const float *g, int T, int D);
void channel_mix_key(float *h, const float *xk, const float *key, int T, int D, int F);

void forward(const Model *m, const int *tokens, int T, State *state, See see, void *seer);

#endif
