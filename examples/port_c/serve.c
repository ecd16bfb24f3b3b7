/* The protocol of docs/protocol.md around rwkv7.c: a line of JSON in, a line of JSON out, tensors in safetensors files.
 * For machines that are little-endian, as the files are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rwkv7.h"

#define DEFAULT_CHUNK 32 /* tokens that prefill takes at a time: what the buffers of `forward` are as large as */

/* --- refusals ---------------------------------------------------------------------------------------------------- */

static jmp_buf refused;
static char why[512];

/* Answer the request with an error, and go on with the next. */
static void refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(why, sizeof why, format, values);
    va_end(values);
    longjmp(refused, 1);
}

/* --- tensors ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char name[96];
    int ndim;
    long shape[4], count;
    float *f; /* its values, */
    int *ids; /* or these, of an I32 */
} Tensor;

typedef struct {
    Tensor *at;
    int count;
} Tensors;

/* blocks.{i}.{name}, or the name alone where there is no block. */
static void name_of(char full[96], int block, const char *name) {
    if (block < 0) snprintf(full, 96, "%s", name);
    else snprintf(full, 96, "blocks.%d.%s", block, name);
}

static Tensor *find(const Tensors *all, const char *name) {
    for (int i = 0; i < all->count; i++)
        if (!strcmp(all->at[i].name, name)) return &all->at[i];
    return NULL;
}

static Tensor *get(const Tensors *all, const char *name) {
    Tensor *found = find(all, name);
    if (!found) refuse("no tensor %s", name);
    return found;
}

static Tensor *add_named(Tensors *all, const char *name) {
    all->at = realloc(all->at, sizeof(Tensor) * (all->count + 1));
    if (!all->at) exit(1);
    Tensor *new = memset(&all->at[all->count++], 0, sizeof(Tensor));
    snprintf(new->name, sizeof new->name, "%s", name);
    return new;
}

/* A new tensor (a, b, c) of zeros; axes that are 0 are left out. */
static float *add(Tensors *all, const char *name, long a, long b, long c) {
    Tensor *new = add_named(all, name);
    long axes[3] = {a, b, c};
    new->count = 1;
    for (int i = 0; i < 3 && axes[i]; i++) new->count *= new->shape[new->ndim++] = axes[i];
    return new->f = reserve(new->count, sizeof(float));
}

static void drop(Tensors *all) {
    for (int i = 0; i < all->count; i++) {
        free(all->at[i].f);
        free(all->at[i].ids);
    }
    free(all->at);
    *all = (Tensors){0};
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * fraction / 16777216; /* subnormal: fraction · 2⁻²⁴ */
    return from_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

static void widen(Tensor *tensor, const char *dtype, const unsigned char *data) {
    const long n = tensor->count;
    if (!strncmp(dtype, "\"I32\"", 5)) {
        memcpy(tensor->ids = reserve(n, sizeof(int)), data, n * sizeof(int));
        return;
    }
    tensor->f = reserve(n, sizeof(float));
    if (!strncmp(dtype, "\"F32\"", 5)) {
        memcpy(tensor->f, data, n * sizeof(float));
        return;
    }
    int half = !strncmp(dtype, "\"F16\"", 5);
    if (!half && strncmp(dtype, "\"BF16\"", 6)) refuse("%s is neither F32, F16, BF16 nor I32", tensor->name);
    for (long i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, 2);
        tensor->f[i] = half ? from_half(bits) : from_bits((uint32_t)bits << 16);
    }
}

static Tensors read_tensors(const char *path) {
    FILE *file = fopen(path, "rb");
    uint64_t length = 0;
    if (!file || fread(&length, 8, 1, file) != 1) refuse("cannot read %s", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file) - 8;
    unsigned char *content = reserve(size + 1, 1);
    fseek(file, 8, SEEK_SET);
    if (size < 0 || length > (uint64_t)size || fread(content, 1, size, file) != (size_t)size)
        refuse("%s is no whole safetensors file", path);
    fclose(file);

    Tensors all = {0};
    char *at = (char *)content + 1, *header_end = (char *)content + length;
    const unsigned char *data = content + length;
    while (at < header_end && (at = memchr(at, '"', header_end - at))) { /* "name":{"dtype":…,"shape":[…],…} */
        char *name = at + 1, *name_end = strchr(name, '"'), *end = strchr(name_end, '}');
        *name_end = *end = 0;
        if (strcmp(name, "__metadata__")) {
            Tensor *new = add_named(&all, name);
            char *shape = strstr(name_end + 1, "\"shape\":[") + 9, *offsets = strstr(name_end + 1, "\"data_offsets\":[");
            new->count = 1;
            while (*shape != ']' && new->ndim < 4) {
                new->count *= new->shape[new->ndim++] = strtol(shape, &shape, 10);
                shape += *shape == ',';
            }
            widen(new, strstr(name_end + 1, "\"dtype\":") + 8, data + strtol(offsets + 16, NULL, 10));
        }
        at = end + 1;
    }
    free(content);
    return all;
}

static void write_tensors(const char *path, const Tensors *all) {
    char *header = reserve(all->count + 1, 256), *at = header;
    long offset = 0;
    for (int i = 0; i < all->count; i++) {
        const Tensor *each = &all->at[i];
        at += sprintf(at, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? ',' : '{', each->name);
        for (int j = 0; j < each->ndim; j++) at += sprintf(at, "%s%ld", j ? "," : "", each->shape[j]);
        at += sprintf(at, "],\"data_offsets\":[%ld,%ld]}", offset, offset + 4 * each->count);
        offset += 4 * each->count;
    }
    at += sprintf(at, all->count ? "}" : "{}");
    while ((at - header) % 8) *at++ = ' ';
    uint64_t length = at - header;
    FILE *file = fopen(path, "wb");
    if (!file) refuse("cannot write %s", path);
    fwrite(&length, 8, 1, file);
    fwrite(header, 1, length, file);
    for (int i = 0; i < all->count; i++) fwrite(all->at[i].f, sizeof(float), all->at[i].count, file);
    if (fclose(file)) refuse("cannot write %s", path);
    free(header);
}

/* --- requests: flat JSON, no escapes, no spaces ------------------------------------------------------------------ */

static const char *field(const char *line, const char *key) {
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\"%s\":", key);
    const char *found = strstr(line, pattern);
    if (!found) refuse("no field %s", key);
    return found + strlen(pattern);
}

static long number(const char *line, const char *key) { return strtol(field(line, key), NULL, 10); }

/* A string; the next call with the same `slot` takes its place. */
static const char *text(const char *line, const char *key, int slot) {
    static char texts[2][4096];
    if (sscanf(field(line, key), "\"%4095[^\"]\"", texts[slot]) != 1) refuse("field %s is no string", key);
    return texts[slot];
}

/* A list of numbers, and how many. */
static int *numbers(const char *line, const char *key, int *count) {
    const char *at = field(line, key) + 1;
    int *list = reserve(strcspn(at, "]") + 1, sizeof(int));
    for (*count = 0; *at != ']'; at += *at == ',') list[(*count)++] = (int)strtol(at, (char **)&at, 10);
    return list;
}

/* --- the model --------------------------------------------------------------------------------------------------- */

static Tensors weights;
static Model model;
static int chunk = DEFAULT_CHUNK;

/* The values of a weight of that many numbers. */
static const float *weight(int block, const char *name, long count) {
    char full[96];
    name_of(full, block, name);
    const Tensor *found = get(&weights, full);
    if (found->count != count) refuse("%s has %ld numbers, not %ld", full, found->count, count);
    return found->f;
}

static void load(const char *line) {
    if (strncmp(field(line, "dtype"), "\"float32\"", 9)) refuse("float32 is all there is");
    if (strncmp(field(line, "quantize"), "\"none\"", 6)) refuse("there is no INT8");
    if (number(line, "attention_layers")) refuse("there are no attention blocks");
    Config *c = &model.c;
    c->L = number(line, "layers"), c->D = number(line, "width"), c->H = number(line, "heads");
    c->N = number(line, "head_size"), c->F = number(line, "ffn"), c->V = number(line, "vocab");
    c->ln_eps = strtof(field(line, "layer_norm_eps"), NULL), c->gn_eps = strtof(field(line, "group_norm_eps"), NULL);
    const long D = c->D, DD = D * D, DF = D * c->F;
    weights = read_tensors(text(line, "model", 1));
    model.emb = weight(-1, "emb.weight", D * c->V), model.head = weight(-1, "head.weight", D * c->V);
    model.ln0_w = weight(0, "ln0.weight", D), model.ln0_b = weight(0, "ln0.bias", D);
    model.ln_out_w = weight(-1, "ln_out.weight", D), model.ln_out_b = weight(-1, "ln_out.bias", D);
    model.blocks = reserve(c->L, sizeof(Block));
    for (int i = 0; i < c->L; i++) {
        Block *p = &model.blocks[i];
        p->rank_w = number(line, "rank_w"), p->rank_a = number(line, "rank_a");
        p->rank_v = number(line, "rank_v"), p->rank_g = number(line, "rank_g");
        p->ln1_w = weight(i, "ln1.weight", D), p->ln1_b = weight(i, "ln1.bias", D);
        p->ln2_w = weight(i, "ln2.weight", D), p->ln2_b = weight(i, "ln2.bias", D);
        p->x_r = weight(i, "att.x_r", D), p->x_w = weight(i, "att.x_w", D), p->x_k = weight(i, "att.x_k", D);
        p->x_v = weight(i, "att.x_v", D), p->x_a = weight(i, "att.x_a", D), p->x_g = weight(i, "att.x_g", D);
        p->w0 = weight(i, "att.w0", D), p->w1 = weight(i, "att.w1", D * p->rank_w);
        p->w2 = weight(i, "att.w2", D * p->rank_w);
        p->a0 = weight(i, "att.a0", D), p->a1 = weight(i, "att.a1", D * p->rank_a);
        p->a2 = weight(i, "att.a2", D * p->rank_a);
        p->g1 = weight(i, "att.g1", D * p->rank_g), p->g2 = weight(i, "att.g2", D * p->rank_g);
        if (i > 0) { /* block 0 gives v_first and does not mix */
            p->v0 = weight(i, "att.v0", D), p->v1 = weight(i, "att.v1", D * p->rank_v);
            p->v2 = weight(i, "att.v2", D * p->rank_v);
        }
        p->k_k = weight(i, "att.k_k", D), p->k_a = weight(i, "att.k_a", D), p->r_k = weight(i, "att.r_k", D);
        p->receptance = weight(i, "att.receptance.weight", DD), p->key = weight(i, "att.key.weight", DD);
        p->value = weight(i, "att.value.weight", DD), p->output = weight(i, "att.output.weight", DD);
        p->lnx_w = weight(i, "att.ln_x.weight", D), p->lnx_b = weight(i, "att.ln_x.bias", D);
        p->ffn_x_k = weight(i, "ffn.x_k", D);
        p->ffn_key = weight(i, "ffn.key.weight", DF), p->ffn_value = weight(i, "ffn.value.weight", DF);
    }
}

/* --- states: one stretch of memory each; a handle is its place in the list --------------------------------------- */

static State *states;
static int handles;

static long shift_size(void) { return (long)model.c.L * model.c.D; }
static long state_size(void) { return shift_size() * (2 + model.c.N); }

static int new_state(void) {
    states = realloc(states, sizeof(State) * (handles + 1));
    if (!states) exit(1);
    State *s = &states[handles];
    s->att_x = reserve(state_size(), sizeof(float));
    s->ffn_x = s->att_x + shift_size();
    s->wkv = s->ffn_x + shift_size();
    return handles++;
}

static State *state_of(long handle) {
    if (handle < 0 || handle >= handles || !states[handle].att_x) refuse("no state %ld", handle);
    return &states[handle];
}

static void assign(const State *to, const State *from) {
    memcpy(to->att_x, from->att_x, sizeof(float) * state_size());
}

static int copy_of(long handle) {
    state_of(handle);
    int new = new_state();
    assign(&states[new], &states[handle]);
    return new;
}

/* Between a state and its tensors, blocks.{i}.state.*: out of it, or into it. */
static void exchange(const State *s, Tensors *all, int into) {
    const Config c = model.c;
    char name[96];
    for (int i = 0; i < c.L; i++) {
        const struct { const char *name; float *at; long a, b; } part[3] = {
            {"att_x", s->att_x + (long)i * c.D, c.D, 0},
            {"wkv", s->wkv + (long)i * c.D * c.N, c.H, c.N},
            {"ffn_x", s->ffn_x + (long)i * c.D, c.D, 0},
        };
        for (int j = 0; j < 3; j++) {
            long count = part[j].b ? (long)c.D * c.N : c.D;
            snprintf(name, sizeof name, "blocks.%d.state.%s", i, part[j].name);
            if (!into) memcpy(add(all, name, part[j].a, part[j].b, part[j].b), part[j].at, sizeof(float) * count);
            else if (get(all, name)->count != count) refuse("%s has another size", name);
            else memcpy(part[j].at, get(all, name)->f, sizeof(float) * count);
        }
    }
}

/* --- runs -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *wanted; /* the names, quoted, in the request */
    Tensors *out;
    int rows, total; /* how many are written, of how many */
} Shown;

static void show(void *seer, int block, const char *name, const float *x, int T, int a, int b) {
    Shown *shown = seer;
    char full[96], quoted[100];
    name_of(full, block, name);
    snprintf(quoted, sizeof quoted, "\"%s\"", full);
    if (!strstr(shown->wanted, quoted)) return;
    const Tensor *tensor = find(shown->out, full);
    float *rows = tensor ? tensor->f : add(shown->out, full, shown->total, a, b);
    long row = (long)a * (b ? b : 1);
    memcpy(rows + shown->rows * row, x, sizeof(float) * T * row);
}

/* One row of tokens, or several end to end, each with its own state; a chunk at a time. */
static void run(const int *tokens, const int *lengths, const int *of, int rows, const char *wanted, const char *path) {
    Tensors out = {0};
    Shown shown = {wanted, &out, 0, 0};
    for (int i = 0; i < rows; i++) {
        state_of(of[i]);
        if (lengths[i] < 1) refuse("a row of no tokens");
        shown.total += lengths[i];
    }
    for (int t = 0; t < shown.total; t++)
        if (tokens[t] < 0 || tokens[t] >= model.c.V) refuse("token %d is none of %d", tokens[t], model.c.V);
    for (int i = 0; i < rows; i++)
        for (int left = lengths[i], T; left > 0; left -= T, shown.rows += T) {
            T = left < chunk ? left : chunk;
            forward(&model, tokens + shown.rows, T, state_of(of[i]), show, &shown);
        }
    write_tensors(path, &out);
    drop(&out);
}

/* One formula: its inputs by name, its outputs into `out`. */
static void apply(const char *op, const Tensors *in, Tensors *out) {
#define IN(name) (get(in, name)->f)
#define OP(name) (!strcmp(op, name))
    const Tensor *first = &in->at[0];
    long T = 0, H = 0, N = 0, D = 0;
    const char *rows[] = {"x", "xw", "xa", "xg", "xk", "r", "k", "y", "norm", "v"}; /* the first that is there tells */
    for (int i = 0; i < 10 && !T; i++)
        if ((first = find(in, rows[i]))) {
            T = first->shape[0], H = first->shape[1], N = first->ndim == 3 ? first->shape[2] : 1;
            D = H * N;
        }
    if (OP("embedding")) T = get(in, "tokens")->count, D = get(in, "emb")->shape[1];
    if (!T) refuse("no inputs that are known");
    if (OP("layer_norm")) layer_norm(add(out, "y", T, D, 0), IN("x"), IN("weight"), IN("bias"), T, D, 1e-5f);
    else if (OP("embedding"))
        embedding(add(out, "x", T, D, 0), get(in, "tokens")->ids, IN("emb"), IN("weight"), IN("bias"), T, D, 1e-5f);
    else if (OP("token_shift")) token_shift(add(out, "y", T, D, 0), IN("x"), IN("previous"), IN("mix"), T, D);
    else if (OP("lora"))
        lora(add(out, "y", T, D, 0), IN("x"), IN("down"), IN("up"), NULL, T, D, get(in, "up")->shape[0]);
    else if (OP("decay"))
        decay(add(out, "w", T, D, 0), IN("xw"), IN("w0"), IN("w1"), IN("w2"), T, D, get(in, "w2")->shape[0]);
    else if (OP("in_context_rate"))
        in_context_rate(add(out, "a", T, D, 0), IN("xa"), IN("a0"), IN("a1"), IN("a2"), T, D, get(in, "a2")->shape[0]);
    else if (OP("gate")) gate(add(out, "g", T, D, 0), IN("xg"), IN("g1"), IN("g2"), T, D, get(in, "g2")->shape[0]);
    else if (OP("l2norm")) l2norm(add(out, "kk", T, H, N), IN("k"), IN("k_k"), T, H, N);
    else if (OP("k_update")) k_update(add(out, "k", T, H, N), IN("k"), IN("a"), IN("k_a"), T, D);
    else if (OP("v_first"))
        v_first(add(out, "v", T, D, 0), IN("v"), IN("first"), IN("xv"), IN("v0"), IN("v1"), IN("v2"), T, D,
                get(in, "v2")->shape[0]);
    else if (OP("wkv7")) {
        float *y = add(out, "y", T, H, N), *S = add(out, "state", H, N, N);
        memcpy(S, IN("state"), sizeof(float) * D * N);
        wkv7(y, S, IN("r"), IN("w"), IN("k"), IN("v"), IN("kk"), IN("a"), T, H, N);
    } else if (OP("group_norm"))
        group_norm(add(out, "o", T, D, 0), IN("y"), IN("weight"), IN("bias"), T, H, N, 64e-5f);
    else if (OP("bonus")) bonus(add(out, "b", T, D, 0), IN("r"), IN("k"), IN("v"), IN("r_k"), T, H, N);
    else if (OP("gate_correction"))
        gate_correction(add(out, "o", T, D, 0), IN("norm"), IN("bonus"), IN("g"), T, D);
    else if (OP("channel_mix")) {
        long F = get(in, "key")->shape[0];
        float *hidden = reserve(T * F, sizeof(float));
        channel_mix_key(hidden, IN("xk"), IN("key"), T, D, F);
        linear(add(out, "y", T, D, 0), hidden, IN("value"), T, F, D);
        free(hidden);
    } else if (OP("head")) {
        long V = get(in, "head")->shape[0];
        float *normed = reserve(T * D, sizeof(float));
        layer_norm(normed, IN("x"), IN("weight"), IN("bias"), T, D, 1e-5f);
        linear(add(out, "logits", T, V, 0), normed, IN("head"), T, D, V);
        free(normed);
    } else refuse("no op %s", op);
}

/* --- verbs ------------------------------------------------------------------------------------------------------- */

static void answer(const char *line) {
    const char *verb = text(line, "verb", 0);
#define VERB(name) (!strcmp(verb, name))
    if (VERB("hello")) {
#ifdef _OPENMP
        const char *more = ",\"threads\"";
#else
        const char *more = "";
#endif
        printf("{\"protocol\":1,\"name\":\"port_c\",\"version\":\"0.1\",\"dtypes\":[\"float32\"],\"capabilities\":"
               "[\"taps\",\"state\",\"snapshot\",\"batch\",\"chunk\",\"apply\"%s]}\n", more);
        return;
    }
    if (VERB("initial_state")) {
        printf("{\"state\":%d}\n", new_state());
        return;
    }
    if (VERB("clone") || VERB("snapshot")) {
        int new = copy_of(number(line, "state"));
        printf("{\"%s\":%d}\n", VERB("clone") ? "state" : "snapshot", new);
        return;
    }
    if (VERB("import_state")) {
        Tensors all = read_tensors(text(line, "in", 1));
        int new = new_state();
        exchange(&states[new], &all, 1);
        drop(&all);
        printf("{\"state\":%d}\n", new);
        return;
    }
    if (VERB("load")) load(line);
    else if (VERB("forward")) {
        int length, of = number(line, "state"), *tokens = numbers(line, "tokens", &length);
        run(tokens, &length, &of, 1, field(line, "taps"), text(line, "out", 1));
        free(tokens);
    } else if (VERB("forward_batch")) {
        int total, rows, *tokens = numbers(line, "tokens", &total), *lengths = numbers(line, "lengths", &rows);
        int *of = numbers(line, "states", &rows);
        run(tokens, lengths, of, rows, field(line, "taps"), text(line, "out", 1));
        free(tokens), free(lengths), free(of);
    } else if (VERB("export_state")) {
        Tensors out = {0};
        exchange(state_of(number(line, "state")), &out, 0);
        write_tensors(text(line, "out", 1), &out);
        drop(&out);
    } else if (VERB("reset"))
        memset(state_of(number(line, "state"))->att_x, 0, sizeof(float) * state_size());
    else if (VERB("rollback"))
        assign(state_of(number(line, "state")), state_of(number(line, "snapshot")));
    else if (VERB("release")) {
        int count, *list = numbers(line, "handles", &count);
        for (int i = 0; i < count; i++) {
            free(state_of(list[i])->att_x);
            states[list[i]].att_x = NULL;
        }
        free(list);
    } else if (VERB("set_chunk")) chunk = number(line, "tokens") ? number(line, "tokens") : DEFAULT_CHUNK;
    else if (VERB("set_threads")) threads = number(line, "threads") ? number(line, "threads") : 1;
    else if (VERB("apply")) {
        Tensors in = read_tensors(text(line, "in", 1)), out = {0};
        apply(text(line, "op", 1), &in, &out);
        write_tensors(text(line, "out", 1), &out);
        drop(&in);
        drop(&out);
    } else if (!VERB("close")) refuse("no verb %s", verb);
    printf("{}\n");
    if (VERB("close")) exit(fflush(stdout) ? 1 : 0);
}

/* The next line of stdin, however long; NULL at its end. */
static char *next_line(void) {
    static char *line;
    static size_t room;
    size_t length = 0;
    for (;;) {
        if (room - length < 4096) line = realloc(line, room += 1 << 16);
        if (!line || !fgets(line + length, 4096, stdin)) return NULL;
        length += strlen(line + length);
        if (line[length - 1] == '\n') return line;
    }
}

int main(void) {
    for (char *line; (line = next_line()); fflush(stdout)) {
        if (setjmp(refused)) printf("{\"error\":\"%s\"}\n", why);
        else answer(line);
    }
    return 0;
}
