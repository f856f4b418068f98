/* A library with the interface of QATzip and zlib behind it, for tests: what it does is chosen when it is built. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define HARDWARE 0
#define SOFTWARE 1
#define NO_DEVICE 2
#define REFUSES 3
#define OTHER_FORMAT 4
#define WRONG_BITS 5

#ifndef BEHAVIOUR
#define BEHAVIOUR HARDWARE
#endif

#define BUFFER_SIZE 65536u

typedef struct {
    long hw_session_stat;
    int thd_sess_stat;
    void *internal;
    unsigned long total_in;
    unsigned long total_out;
} Session;

typedef struct {
    int huffman_hdr;
    int direction;
    int data_fmt;
    unsigned int comp_lvl;
    unsigned char comp_algorithm;
    unsigned int max_forks;
    unsigned char sw_backup;
    unsigned int hw_buff_sz;
    unsigned int strm_buff_sz;
    unsigned int input_sz_thrshold;
    unsigned int req_cnt_thrshold;
    unsigned int wait_cnt_thrshold;
} Parameters;

typedef struct {
    unsigned int level;
    int is_broken;
} Internal;

int qzInit(Session *session, unsigned char sw_backup)
{
    static int is_begun;
    if (!session || sw_backup > 1)
        return -1;
    if (BEHAVIOUR == NO_DEVICE)
        return -101;
    if (BEHAVIOUR == SOFTWARE)
        return 11;
    return is_begun++ ? 1 : 0;
}

int qzGetDefaults(Parameters *parameters)
{
    Parameters defaults = {0, 2, 2, 1, 8, 3, 1, BUFFER_SIZE, BUFFER_SIZE, 1024, 4, 8};
    *parameters = defaults;
    return 0;
}

int qzSetupSession(Session *session, Parameters *parameters)
{
    Parameters expected;
    Internal *internal;
    qzGetDefaults(&expected);
    expected.direction = 0;
    expected.data_fmt = 3;
    expected.comp_lvl = parameters->comp_lvl;
    if (BEHAVIOUR == REFUSES || session->internal || parameters->comp_lvl < 1 || parameters->comp_lvl > 9
        || parameters->direction != expected.direction || parameters->data_fmt != expected.data_fmt
        || parameters->comp_algorithm != expected.comp_algorithm || parameters->max_forks != expected.max_forks
        || parameters->sw_backup != expected.sw_backup || parameters->hw_buff_sz != expected.hw_buff_sz
        || parameters->strm_buff_sz != expected.strm_buff_sz
        || parameters->input_sz_thrshold != expected.input_sz_thrshold
        || parameters->req_cnt_thrshold != expected.req_cnt_thrshold
        || parameters->wait_cnt_thrshold != expected.wait_cnt_thrshold)
        return -1;
    internal = calloc(1, sizeof *internal);
    internal->level = parameters->comp_lvl;
    session->internal = internal;
    session->hw_session_stat = BEHAVIOUR == SOFTWARE ? 11 : 0;
    return 0;
}

/* Input that begins with FAIL breaks its session, as a device may. */
int qzCompress(Session *session, const unsigned char *src, unsigned int *src_len, unsigned char *dest,
               unsigned int *dest_len, unsigned int last)
{
    Internal *internal = session->internal;
    unsigned int left = *src_len, room = *dest_len;
    z_stream stream;
    if (!internal || !src || !dest || last > 1)
        return -1;
    *src_len = 0;
    *dest_len = 0;
    if (left >= 4 && !memcmp(src, "FAIL", 4))
        internal->is_broken = 1;
    if (internal->is_broken)
        return -5;
    memset(&stream, 0, sizeof stream);
    if (deflateInit2(&stream, (int)internal->level, Z_DEFLATED, BEHAVIOUR == OTHER_FORMAT ? 15 : -15, 9, 0) != Z_OK)
        return -2;
    stream.next_in = (unsigned char *)src;
    stream.next_out = dest;
    stream.avail_out = room;
    /* Buffer by buffer, each on its own, as the device takes them. */
    do {
        unsigned int piece = left < BUFFER_SIZE ? left : BUFFER_SIZE;
        int result;
        left -= piece;
        stream.avail_in = piece;
        result = deflate(&stream, left || !last ? Z_FULL_FLUSH : Z_FINISH);
        if (stream.avail_in || result != (left || !last ? Z_OK : Z_STREAM_END)) {
            deflateEnd(&stream);
            return -3;
        }
    } while (left);
    *src_len = (unsigned int)stream.total_in;
    *dest_len = (unsigned int)stream.total_out;
    session->total_in += stream.total_in;
    session->total_out += stream.total_out;
    if (BEHAVIOUR == WRONG_BITS && *src_len >= 65536 && ++session->thd_sess_stat % 3 == 0)
        dest[*dest_len / 2] ^= 4;
    deflateEnd(&stream);
    return 0;
}

int qzTeardownSession(Session *session)
{
    if (!session)
        return -1;
    free(session->internal);
    session->internal = NULL;
    return 0;
}

int qzClose(Session *session)
{
    return session ? 0 : -1;
}
