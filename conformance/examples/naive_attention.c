/* Attention in plain C, by its definition, for `attnspec conformance judge`.
 *
 *     cc -O2 -o naive_attention naive_attention.c -lm
 *     ./naive_attention CALLS RESULTS
 *
 * reads CALLS/00000.safetensors, 00001.safetensors and so on, and writes an answer to each into RESULTS. The format is
 * described in docs/spec/exchange.md. The header of a call's file is JSON without spaces, so finding a tensor is
 * finding its name; a program that has a JSON reader should use it.
 *
 * B, H, G, Q, K, D and E are the axes: leading, query heads, key heads, queries, keys, width of q and k, width of v.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 8, PATH = 4096 };

typedef struct {
    int there, rank;
    long shape[RANK];
    char dtype[8];
    const unsigned char *data;
} Tensor;

typedef struct {
    char *header;
    const unsigned char *data;
} File;

static void stop(const char *what, const char *name) {
    fprintf(stderr, "naive_attention: %s %s\n", what, name);
    exit(2);
}

/* The file, its header ending in a zero; without data if there is no such file. */
static File open_file(const char *path) {
    File file = {NULL, NULL};
    unsigned char length[8];
    FILE *stream = fopen(path, "rb");
    if (!stream) return file;
    fseek(stream, 0, SEEK_END);
    long size = ftell(stream) - 8, n = 0;
    rewind(stream);
    if (size < 0 || fread(length, 1, 8, stream) != 8) stop("cannot read", path);
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    if (n > size) stop("header too long in", path);
    file.header = calloc(n + 1, 1);
    unsigned char *data = malloc(size - n + 1);
    if (fread(file.header, 1, n, stream) != (size_t)n || fread(data, 1, size - n, stream) != (size_t)(size - n))
        stop("cannot read", path);
    file.data = data;
    fclose(stream);
    return file;
}

static Tensor tensor(const File *file, const char *name) {
    Tensor t = {0};
    char start[32];
    snprintf(start, sizeof start, "\"%s\":{", name);
    const char *at = strstr(file->header, start);
    if (!at) return t;
    const char *dtype = strstr(at, "\"dtype\":\""), *shape = strstr(at, "\"shape\":[");
    const char *data = strstr(at, "_offsets\":[");
    if (!dtype || !shape || !data) stop("cannot understand the header of", name);
    sscanf(dtype + 9, "%7[A-Z0-9]", t.dtype);
    for (const char *p = shape + 9; *p != ']' && t.rank < RANK; p += *p == ',')
        t.shape[t.rank++] = strtol(p, (char **)&p, 10);
    t.data = file->data + strtol(data + 11, NULL, 10);
    t.there = 1;
    return t;
}

/* An option of the call, or the default where it has none. */
static double option(const File *file, const char *name, double otherwise) {
    char start[32];
    snprintf(start, sizeof start, "\"%s\":\"", name);
    const char *at = strstr(file->header, start);
    return at ? strtod(at + strlen(start), NULL) : otherwise;
}

static int is(const File *file, const char *name, const char *value) {
    char text[64];
    snprintf(text, sizeof text, "\"%s\":\"%s\"", name, value);
    return strstr(file->header, text) != NULL;
}

/* Axes count from the right: -1 is the last. A tensor of rank 2 has one head. */
static long axis(const Tensor *t, int n) { return n + t->rank >= 0 ? t->shape[n + t->rank] : 1; }

/* The entry at an index of `rank` axes, of which the tensor has the last ones; axes of size 1 are broadcast. */
static double entry(const Tensor *t, const long *index, int rank) {
    long at = 0;
    for (int n = -t->rank; n < 0; n++) at = at * axis(t, n) + (axis(t, n) == 1 || n + rank < 0 ? 0 : index[n + rank]);
    if (!strcmp(t->dtype, "BOOL")) return t->data[at];
    if (!strcmp(t->dtype, "F64")) {
        double x;
        memcpy(&x, t->data + 8 * at, 8);
        return x;
    }
    float x;
    uint16_t half;
    uint32_t bits;
    if (!strcmp(t->dtype, "F32")) {
        memcpy(&x, t->data + 4 * at, 4);
        return x;
    }
    if (strcmp(t->dtype, "BF16")) stop("no such dtype here:", t->dtype);
    memcpy(&half, t->data + 2 * at, 2);
    bits = (uint32_t)half << 16;
    memcpy(&x, &bits, 4);
    return x;
}

/* Append a number in the dtype, rounded once. */
static void put(unsigned char **end, double x, const char *dtype) {
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, 4);
    if (!strcmp(dtype, "F64")) memcpy(*end, &x, 8), *end += 8;
    else if (!strcmp(dtype, "F32")) memcpy(*end, &narrow, 4), *end += 4;
    else {
        uint16_t half = isnan(x) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        memcpy(*end, &half, 2), *end += 2;
    }
}

static void say(const char *path, const char *error, const char *reason) {
    FILE *stream = fopen(path, "w");
    if (!stream) stop("cannot write", path);
    fprintf(stream, "{\"error\": \"%s\", \"reason\": \"%s\"}\n", error, reason);
    fclose(stream);
}

typedef struct {
    Tensor q, k, v, mask, bias, sink, keep;
    double scale, softcap, rate;
    int lead; /* how many leading axes */
    long shape[RANK]; /* (B..., H, Q, K) */
} Call;

/* One query: its weights, its logarithm of the sum, its output. */
static void attend(const Call *c, const long *index, double *p, double *lse, double *out) {
    long at[RANK], D = axis(&c->q, -1), E = axis(&c->v, -1), G = axis(&c->k, -3), K = axis(&c->k, -2);
    long H = c->shape[c->lead], row = index[c->lead + 1], head = index[c->lead];
    double top = -INFINITY, total = 0;
    int bad = 0, bad_value = 0, rank = c->lead + 3;
    memcpy(at, index, sizeof at);
    for (long j = 0; j < K; j++) {
        p[j] = -INFINITY;
        at[c->lead] = head, at[c->lead + 1] = row, at[c->lead + 2] = j;
        double bias = c->bias.there ? entry(&c->bias, at, rank) : 0;
        if ((c->mask.there && !entry(&c->mask, at, rank)) || bias == -INFINITY) continue;
        double s = 0;
        for (long d = 0; d < D; d++) {
            at[c->lead] = head, at[c->lead + 1] = row, at[c->lead + 2] = d;
            double x = entry(&c->q, at, rank);
            at[c->lead] = head / (H / G), at[c->lead + 1] = j;
            double y = entry(&c->k, at, rank);
            bad |= !isfinite(x) || !isfinite(y);
            s += x * y;
        }
        s *= c->scale;
        if (c->softcap > 0) s = c->softcap * tanh(s / c->softcap);
        bad |= !isfinite(bias);
        p[j] = s + bias;
        top = fmax(top, p[j]);
        at[c->lead] = head / (H / G), at[c->lead + 1] = j;
        for (long e = 0; e < E; e++) at[c->lead + 2] = e, bad_value |= !isfinite(entry(&c->v, at, rank));
    }
    double sink = c->sink.there ? entry(&c->sink, index, c->lead + 1) : -INFINITY;
    top = fmax(top, sink);
    for (long j = 0; j < K; j++) p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top), total += p[j];
    if (sink > -INFINITY) total += exp(sink - top);
    *lse = bad ? NAN : total > 0 ? top + log(total) : -INFINITY;
    for (long e = 0; e < E; e++) out[e] = bad || bad_value ? NAN : 0;
    for (long j = 0; j < K; j++) {
        at[c->lead] = head, at[c->lead + 1] = row, at[c->lead + 2] = j;
        double w = p[j] = bad ? NAN : total > 0 ? p[j] / total : 0;
        if (c->keep.there) w = entry(&c->keep, at, rank) ? w / (1 - c->rate) : 0;
        if (w == 0) continue; /* 0 times what nobody may see */
        at[c->lead] = head / (H / G), at[c->lead + 1] = j;
        for (long e = 0; e < E; e++) at[c->lead + 2] = e, out[e] += w * entry(&c->v, at, rank);
    }
}

/* Why the arrays do not fit, or NULL; finds the shape of the pairs. */
static const char *refusal(Call *c) {
    const Tensor *all[3] = {&c->q, &c->k, &c->v}, *pairs[2] = {&c->mask, &c->bias};
    if (axis(&c->q, -1) != axis(&c->k, -1)) return "q and k have different widths";
    if (axis(&c->k, -2) != axis(&c->v, -2)) return "k and v have different lengths";
    if (axis(&c->k, -3) != axis(&c->v, -3)) return "k and v have different numbers of heads";
    if (axis(&c->k, -3) == 0 || axis(&c->q, -3) % axis(&c->k, -3)) return "the heads of q cannot share those of k";
    for (int x = 0; x < 3; x++) c->lead = all[x]->rank - 3 > c->lead ? all[x]->rank - 3 : c->lead;
    for (int n = 0; n < c->lead; n++) {
        c->shape[n] = 1;
        for (int x = 0; x < 3; x++) {
            long size = axis(all[x], n - c->lead - 3);
            if (size != 1 && c->shape[n] != 1 && size != c->shape[n]) return "leading axes do not broadcast";
            if (size != 1) c->shape[n] = size;
        }
    }
    for (int n = -3; n < -1; n++) c->shape[c->lead + 3 + n] = axis(&c->q, n);
    c->shape[c->lead + 2] = axis(&c->k, -2);
    for (int x = 0; x < 2; x++)
        for (int n = -pairs[x]->rank; n < 0; n++)
            if (axis(pairs[x], n) != 1 && (n + c->lead + 3 < 0 || axis(pairs[x], n) != c->shape[n + c->lead + 3]))
                return "a mask or bias does not broadcast to (..., H, Q, K)";
    return NULL;
}

/* Append a tensor's entry to the header. */
static char *describe(char *end, const char *name, const char *dtype, const long *shape, int rank, long *offset) {
    long size = !strcmp(dtype, "F64") ? 8 : !strcmp(dtype, "F32") ? 4 : 2;
    end += sprintf(end, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", end[-1] == '{' ? "" : ",", name, dtype);
    for (int n = 0; n < rank; n++) end += sprintf(end, n ? ",%ld" : "%ld", shape[n]), size *= shape[n];
    end += sprintf(end, "],\"data_offsets\":[%ld,%ld]}", *offset, *offset + size);
    *offset += size;
    return end;
}

static void answer(const File *file, const char *stem) {
    Call c = {tensor(file, "q"), tensor(file, "k"), tensor(file, "v"), tensor(file, "mask"),
              tensor(file, "bias"), tensor(file, "sink"), tensor(file, "keep"), 0, 0, 0, 0, {0}};
    char path[PATH + 16], text[1024] = "{", *end = text + 1;
    snprintf(path, sizeof path, "%s.json", stem);
    if (is(file, "want", "gradients")) return say(path, "unsupported", "it gives no gradients");
    if (!strcmp(c.q.dtype, "F16")) return say(path, "unsupported", "it has no float16");
    if (!is(file, "layout", "plain") && !is(file, "layout", "readonly"))
        return say(path, "unsupported", "it takes arrays in C order");
    const char *reason = refusal(&c);
    if (reason) return say(path, "refused", reason);
    long D = axis(&c.q, -1), E = axis(&c.v, -1), rows = 1, index[RANK] = {0}, shape[RANK];
    int rank = c.lead + 3;
    for (int n = 0; n < rank - 1; n++) rows *= c.shape[n];
    long K = c.shape[rank - 1];
    c.scale = option(file, "scale", D ? 1 / sqrt(D) : 1);
    c.softcap = option(file, "softcap", 0);
    c.rate = option(file, "rate", 0);

    const char *dtype = c.q.dtype, *wide = strcmp(dtype, "F64") ? "F32" : "F64";
    unsigned char *outs = malloc(rows * E * 8 + 1), *lses = malloc(rows * 8 + 1), *weights = malloc(rows * K * 8 + 1);
    unsigned char *out_end = outs, *lse_end = lses, *weights_end = weights;
    double *p = malloc(K * 8 + 8), *out = malloc(E * 8 + 8), lse;
    for (long row = 0; row < rows; row++) {
        for (long n = rank - 2, rest = row; n >= 0; rest /= c.shape[n--]) index[n] = rest % c.shape[n];
        attend(&c, index, p, &lse, out);
        put(&lse_end, lse, wide);
        for (long e = 0; e < E; e++) put(&out_end, out[e], dtype);
        for (long j = 0; j < K; j++) put(&weights_end, p[j], dtype);
    }

    /* Rank 2 has no head axis. */
    long offset = 0, first = c.q.rank == 2 ? rank - 2 : 0;
    memcpy(shape, c.shape, sizeof shape);
    if (is(file, "want", "weights")) {
        end = describe(end, "weights", dtype, shape + first, rank - first, &offset);
    } else {
        shape[rank - 1] = E;
        end = describe(end, "out", dtype, shape + first, rank - first, &offset);
        if (is(file, "want", "lse")) end = describe(end, "lse", wide, shape + first, rank - first - 1, &offset);
    }
    *end++ = '}';
    while ((end - text) % 8) *end++ = ' ';

    snprintf(path, sizeof path, "%s.safetensors", stem);
    FILE *stream = fopen(path, "wb");
    if (!stream) stop("cannot write", path);
    for (int n = 0; n < 8; n++) fputc((int)((end - text) >> 8 * n & 0xff), stream);
    fwrite(text, 1, end - text, stream);
    if (is(file, "want", "weights")) fwrite(weights, 1, weights_end - weights, stream);
    else fwrite(outs, 1, out_end - outs, stream);
    if (is(file, "want", "lse")) fwrite(lses, 1, lse_end - lses, stream);
    fclose(stream);
    free(outs), free(lses), free(weights), free(p), free(out);
}

int main(int count, char **arguments) {
    char path[PATH];
    if (count != 3) stop("usage:", "naive_attention CALLS RESULTS");
    for (int n = 0;; n++) {
        snprintf(path, sizeof path, "%s/%05d.safetensors", arguments[1], n);
        File file = open_file(path);
        if (!file.data) break;
        snprintf(path, sizeof path, "%s/%05d", arguments[2], n);
        answer(&file, path);
        free(file.header), free((void *)file.data);
    }
    snprintf(path, sizeof path, "%s/subject.json", arguments[2]);
    FILE *stream = fopen(path, "w");
    if (!stream) stop("cannot write", path);
    fputs("{\"name\": \"naive attention in C\", \"capabilities\": [\"float64\", \"bfloat16\"]}\n", stream);
    fclose(stream);
    return 0;
}
