/* The formulas of RWKV-7, one function each, and the whole model at the end. To be read beside the paper. */
#include "rwkv7.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int threads = 1;

/* Each row of a product is one thread's, so the number of threads changes no value. */
#ifdef _OPENMP
#define ROWS_IN_PARALLEL _Pragma("omp parallel for num_threads(threads)")
#else
#define ROWS_IN_PARALLEL
#endif

void *reserve(long count, long size) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, (size_t)size);
    if (!memory) {
        fprintf(stderr, "no memory for %ld times %ld bytes\n", count, size);
        exit(1);
    }
    return memory;
}

static float *floats(long count) { return reserve(count, sizeof(float)); }

/* Σ a_i b_i, in eight sums side by side: compilers make one vector of them. */
static float dot(const float *a, const float *b, int n) {
    float lane[8] = {0}, sum = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += a[i + j] * b[i + j];
    for (int j = 0; j < 8; j++) sum += lane[j];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* σ(x) = 1 / (1 + e⁻ˣ). e⁻ˣ may overflow: 1 / ∞ is the right 0. */
static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* y = (x − mean) / √(var + eps) of n values; the variance is the biased one. */
static void normalise(float *y, const float *x, int n, float eps) {
    float mean = 0, variance = 0;
    for (int i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int i = 0; i < n; i++) {
        y[i] = x[i] - mean;
        variance += y[i] * y[i];
    }
    float root = sqrtf(variance / n + eps);
    for (int i = 0; i < n; i++) y[i] /= root;
}

/* LayerNorm over each token's D channels. x (T, D) → (T, D). */
void layer_norm(float *y, const float *x, const float *weight, const float *bias, int T, int D, float eps) {
    for (int t = 0; t < T; t++, x += D, y += D) {
        normalise(y, x, D, eps);
        for (int i = 0; i < D; i++) y[i] = y[i] * weight[i] + bias[i];
    }
}

/* x_t = LayerNorm(emb[token_t]; ln0): the residual stream starts from the normed row. → (T, D) */
void embedding(float *x, const int *tokens, const float *emb, const float *w, const float *b, int T, int D, float eps) {
    for (int t = 0; t < T; t++) layer_norm(x + (long)t * D, emb + (long)tokens[t] * D, w, b, 1, D, eps);
}

/* y_t = x_t + (x_{t−1} − x_t) · mix, with x_{−1} = previous. x (T, D) → (T, D) */
void token_shift(float *y, const float *x, const float *previous, const float *mix, int T, int D) {
    for (int t = 0; t < T; t++, previous = x, x += D, y += D)
        for (int i = 0; i < D; i++) y[i] = x[i] + (previous[i] - x[i]) * mix[i];
}

/* y_t = W x_t. x (T, in), W (out, in) → (T, out) */
void linear(float *y, const float *x, const float *weight, int T, int in, int out) {
    ROWS_IN_PARALLEL
    for (int o = 0; o < out; o++)
        for (int t = 0; t < T; t++) y[(long)t * out + o] = dot(x + (long)t * in, weight + (long)o * in, in);
}

/* y (columns) += x (rows) · matrix (rows, columns). */
static void add_product(float *y, const float *x, const float *matrix, int rows, int columns) {
    for (int i = 0; i < rows; i++, matrix += columns)
        for (int j = 0; j < columns; j++) y[j] += x[i] * matrix[j];
}

/* y_t = f(x_t A) B, f elementwise or none. x (T, D), A (D, R) and B (R, D) as [in, out] → (T, D) */
void lora(float *y, const float *x, const float *down, const float *up, float (*f)(float), int T, int D, int R) {
    float *hidden = floats(R);
    memset(y, 0, sizeof(float) * T * D);
    for (int t = 0; t < T; t++, x += D, y += D) {
        memset(hidden, 0, sizeof(float) * R);
        add_product(hidden, x, down, D, R);
        for (int i = 0; f && i < R; i++) hidden[i] = f(hidden[i]);
        add_product(y, hidden, up, R, D);
    }
    free(hidden);
}

/* w = exp(−e^(−1/2) · σ(w0 + tanh(xw w1) w2)): the decay itself, in (0.545, 1). → (T, D) */
void decay(float *w, const float *xw, const float *w0, const float *w1, const float *w2, int T, int D, int R) {
    lora(w, xw, w1, w2, tanhf, T, D, R);
    for (int t = 0; t < T; t++, w += D)
        for (int i = 0; i < D; i++) w[i] = expf(-0.6065306597126334f * sigmoid(w0[i] + w[i]));
}

/* a = σ(a0 + (xa a1) a2). → (T, D) */
void in_context_rate(float *a, const float *xa, const float *a0, const float *a1, const float *a2, int T, int D, int R) {
    lora(a, xa, a1, a2, NULL, T, D, R);
    for (int t = 0; t < T; t++, a += D)
        for (int i = 0; i < D; i++) a[i] = sigmoid(a0[i] + a[i]);
}

/* g = σ(xg g1) g2: the sigmoid stands between the two. → (T, D) */
void gate(float *g, const float *xg, const float *g1, const float *g2, int T, int D, int R) {
    lora(g, xg, g1, g2, sigmoid, T, D, R);
}

/* kk_h = z_h / max(‖z_h‖, 1e-12), z = k · k_k, of the raw key. k (T, H, N), k_k (H, N) → (T, H, N) */
void l2norm(float *kk, const float *k, const float *k_k, int T, int H, int N) {
    for (int row = 0; row < T * H; row++, k += N, kk += N) {
        const float *scale = k_k + row % H * N;
        for (int i = 0; i < N; i++) kk[i] = k[i] * scale[i];
        float norm = sqrtf(dot(kk, kk, N));
        if (norm < 1e-12f) norm = 1e-12f;
        for (int i = 0; i < N; i++) kk[i] /= norm;
    }
}

/* k̃ = k · (1 + (a − 1) · k_a). k, a (T, D), k_a (D) → (T, D) */
void k_update(float *out, const float *k, const float *a, const float *k_a, int T, int D) {
    for (int i = 0; i < T * D; i++) out[i] = k[i] * (1 + (a[i] - 1) * k_a[i % D]);
}

/* ṽ = v + (v_first − v) · σ(v0 + (xv v1) v2). v, v_first, xv (T, D) → (T, D) */
void v_first(float *out, const float *v, const float *first, const float *xv, const float *v0, const float *v1,
             const float *v2, int T, int D, int R) {
    lora(out, xv, v1, v2, NULL, T, D, R);
    for (int i = 0; i < T * D; i++) out[i] = v[i] + (first[i] - v[i]) * sigmoid(v0[i % D] + out[i]);
}

/* S_t = S_{t−1} (diag(w_t) − kk_t (kk_t · a_t)ᵀ) + v_t k_tᵀ,  y_t = S_t r_t.
 * S (H, N, N) is [value, key] and goes on in place: row i holds what has been written for value channel i. The delta
 * rule reads it before it decays. Others (T, H, N) → y (T, H, N) */
void wkv7(float *y, float *S, const float *r, const float *w, const float *k, const float *v, const float *kk,
          const float *a, int T, int H, int N) {
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++, y += N, r += N, w += N, k += N, v += N, kk += N, a += N)
            for (int i = 0; i < N; i++) {
                float *row = S + ((long)h * N + i) * N;
                float removed = dot(row, kk, N);
                for (int j = 0; j < N; j++) row[j] = row[j] * w[j] - removed * (kk[j] * a[j]) + v[i] * k[j];
                y[i] = dot(row, r, N);
            }
}

/* o_h = (y_h − mean) / √(var + eps), each head on its own; then · weight + bias. y (T, H, N) → (T, D) */
void group_norm(float *o, const float *y, const float *weight, const float *bias, int T, int H, int N, float eps) {
    for (int row = 0; row < T * H; row++, y += N, o += N) {
        const float *scale = weight + row % H * N, *shift = bias + row % H * N;
        normalise(o, y, N, eps);
        for (int i = 0; i < N; i++) o[i] = o[i] * scale[i] + shift[i];
    }
}

/* b_h = (Σ_j r_hj k_hj r_k_hj) · v_h, with k after its update and v after the lerp. (T, H, N) → (T, D) */
void bonus(float *b, const float *r, const float *k, const float *v, const float *r_k, int T, int H, int N) {
    for (int row = 0; row < T * H; row++, r += N, k += N, v += N, b += N) {
        float sum = 0;
        for (int i = 0; i < N; i++) sum += r[i] * k[i] * r_k[row % H * N + i];
        for (int i = 0; i < N; i++) b[i] = sum * v[i];
    }
}

/* o = (norm + bonus) · g. All (T, D). */
void gate_correction(float *o, const float *norm, const float *b, const float *g, int T, int D) {
    for (int i = 0; i < T * D; i++) o[i] = (norm[i] + b[i]) * g[i];
}

/* h = relu(W xk)². xk (T, D), W (F, D) → (T, F) */
void channel_mix_key(float *h, const float *xk, const float *key, int T, int D, int F) {
    linear(h, xk, key, T, D, F);
    for (int i = 0; i < T * F; i++) h[i] = h[i] < 0 ? 0 : h[i] * h[i]; /* NaN stays NaN */
}

/* x ← x + y */
static void add(float *x, const float *y, int n) {
    for (int i = 0; i < n; i++) x[i] += y[i];
}

/* T tokens through the model; the state goes on. Every value is shown to `see`, the logits (T, V) as the last. */
void forward(const Model *m, const int *tokens, int T, State *state, See see, void *seer) {
    const Config c = m->c;
    const int D = c.D, H = c.H, N = c.N, F = c.F;
    enum { X, U, XR, XW, XK, XV, XA, XG, R, W, K, V, A, KK, KMOD, VMIX, FIRST, G, Y, NORM, BONUS, GATED, OUT, BUFFERS };
    float *memory = floats((long)BUFFERS * T * D), *buffer[BUFFERS], *hidden = floats((long)T * F);
    for (int i = 0; i < BUFFERS; i++) buffer[i] = memory + (long)i * T * D;
    float *x = buffer[X], *u = buffer[U], *xr = buffer[XR], *xw = buffer[XW], *xk = buffer[XK], *xv = buffer[XV];
    float *xa = buffer[XA], *xg = buffer[XG], *r = buffer[R], *w = buffer[W], *k = buffer[K], *v = buffer[V];
    float *a = buffer[A], *kk = buffer[KK], *k_mod = buffer[KMOD], *v_mix = buffer[VMIX], *first = buffer[FIRST];
    float *g = buffer[G], *y = buffer[Y], *norm = buffer[NORM], *b = buffer[BONUS], *gated = buffer[GATED];
    float *out = buffer[OUT];
    const float *last_u = u + (long)(T - 1) * D; /* (D) what token shift keeps */

    embedding(x, tokens, m->emb, m->ln0_w, m->ln0_b, T, D, c.ln_eps);
    see(seer, -1, "emb", x, T, D, 0);
    for (int i = 0; i < c.L; i++) {
        const Block *p = &m->blocks[i];
        float *att_x = state->att_x + (long)i * D, *ffn_x = state->ffn_x + (long)i * D;
        float *S = state->wkv + (long)i * H * N * N;

        /* Time mix */
        layer_norm(u, x, p->ln1_w, p->ln1_b, T, D, c.ln_eps);
        see(seer, i, "att.in", u, T, D, 0);
        token_shift(xr, u, att_x, p->x_r, T, D);
        token_shift(xw, u, att_x, p->x_w, T, D);
        token_shift(xk, u, att_x, p->x_k, T, D);
        token_shift(xv, u, att_x, p->x_v, T, D);
        token_shift(xa, u, att_x, p->x_a, T, D);
        token_shift(xg, u, att_x, p->x_g, T, D);
        memcpy(att_x, last_u, sizeof(float) * D);
        see(seer, i, "att.xr", xr, T, D, 0);
        see(seer, i, "att.xw", xw, T, D, 0);
        see(seer, i, "att.xk", xk, T, D, 0);
        see(seer, i, "att.xv", xv, T, D, 0);
        see(seer, i, "att.xa", xa, T, D, 0);
        see(seer, i, "att.xg", xg, T, D, 0);
        linear(r, xr, p->receptance, T, D, D);
        decay(w, xw, p->w0, p->w1, p->w2, T, D, p->rank_w);
        linear(k, xk, p->key, T, D, D);
        linear(v, xv, p->value, T, D, D);
        in_context_rate(a, xa, p->a0, p->a1, p->a2, T, D, p->rank_a);
        see(seer, i, "att.r", r, T, H, N);
        see(seer, i, "att.w", w, T, H, N);
        see(seer, i, "att.k", k, T, H, N);
        see(seer, i, "att.v", v, T, H, N);
        see(seer, i, "att.a", a, T, H, N);
        l2norm(kk, k, p->k_k, T, H, N);
        see(seer, i, "att.kk", kk, T, H, N);
        k_update(k_mod, k, a, p->k_a, T, D);
        see(seer, i, "att.k_mod", k_mod, T, H, N);
        if (i == 0) memcpy(first, v, sizeof(float) * T * D);
        if (i == 0) memcpy(v_mix, v, sizeof(float) * T * D);
        else v_first(v_mix, v, first, xv, p->v0, p->v1, p->v2, T, D, p->rank_v);
        see(seer, i, "att.v_mix", v_mix, T, H, N);
        gate(g, xg, p->g1, p->g2, T, D, p->rank_g);
        see(seer, i, "att.g", g, T, D, 0);
        wkv7(y, S, r, w, k_mod, v_mix, kk, a, T, H, N);
        see(seer, i, "att.wkv", y, T, H, N);
        group_norm(norm, y, p->lnx_w, p->lnx_b, T, H, N, c.gn_eps);
        see(seer, i, "att.norm", norm, T, D, 0);
        bonus(b, r, k_mod, v_mix, p->r_k, T, H, N);
        see(seer, i, "att.bonus", b, T, D, 0);
        gate_correction(gated, norm, b, g, T, D);
        see(seer, i, "att.gated", gated, T, D, 0);
        linear(out, gated, p->output, T, D, D);
        see(seer, i, "att.out", out, T, D, 0);
        add(x, out, T * D);
        see(seer, i, "mid", x, T, D, 0);

        /* Channel mix */
        layer_norm(u, x, p->ln2_w, p->ln2_b, T, D, c.ln_eps);
        see(seer, i, "ffn.in", u, T, D, 0);
        token_shift(xk, u, ffn_x, p->ffn_x_k, T, D);
        memcpy(ffn_x, last_u, sizeof(float) * D);
        see(seer, i, "ffn.xk", xk, T, D, 0);
        channel_mix_key(hidden, xk, p->ffn_key, T, D, F);
        see(seer, i, "ffn.k", hidden, T, F, 0);
        linear(out, hidden, p->ffn_value, T, F, D);
        see(seer, i, "ffn.out", out, T, D, 0);
        add(x, out, T * D);
        see(seer, i, "out", x, T, D, 0);
    }
    float *logits = floats((long)T * c.V);
    layer_norm(u, x, m->ln_out_w, m->ln_out_b, T, D, c.ln_eps);
    see(seer, -1, "ln_out", u, T, D, 0);
    linear(logits, u, m->head, T, D, c.V);
    see(seer, -1, "logits", logits, T, c.V, 0);
    free(logits);
    free(hidden);
    free(memory);
}
