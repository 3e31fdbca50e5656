/* A controller in C: balances the cart-pole, and is the reference client of the line protocol (version 1).

   Build it for the guest, without anything that the guest may not have:

       cc -O2 -static -o balance balance.c

   Each line on standard input is one JSON object such as {"step":3,"observation":[0.1,0.2,0.3,0.4]}. Each answer is
   one line on standard output: {"action": 0.5}. At the end of the episode standard input ends. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATES 4

static const double GAINS[STATES] = {0.5, 1.0, 20.0, 4.0}; /* of position, speed, angle, rate */

/* Read the numbers of "observation" from a message; return how many there are. */
static int observed(const char *line, double *values)
{
    const char *at = strstr(line, "\"observation\":[");
    int count = 0;

    if (at == NULL)
        return 0;
    at = strchr(at, '[') + 1;
    while (count < STATES) {
        char *end;
        values[count] = strtod(at, &end);
        if (end == at)
            break;
        count++;
        if (*end != ',')
            break;
        at = end + 1;
    }
    return count;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;

    while (getline(&line, &room, stdin) > 0) {
        double values[STATES], push = 0.0;

        if (observed(line, values) != STATES) {
            fprintf(stderr, "no observation of %d numbers: %s", STATES, line);
            return 1;
        }
        for (int i = 0; i < STATES; i++)
            push += GAINS[i] * values[i];
        if (push > 1.0)
            push = 1.0;
        if (push < -1.0)
            push = -1.0;
        printf("{\"action\": %.17g}\n", push);
        fflush(stdout); /* or the answer waits in this program's buffer */
    }
    free(line);
    return 0;
}
