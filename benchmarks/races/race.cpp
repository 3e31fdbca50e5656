// Four threads add to one number: a data race. Prints what was lost, and a hash over where one thread followed another.
#include <cstdio>
#include <thread>

const int ROUNDS = 300000;
volatile long total = 0;
volatile int last = -1;
volatile unsigned long long order = 1469598103934665603ULL;

void work(int number) {
    for (int round = 0; round < ROUNDS; round++) {
        long seen = total;
        if (last != number) {
            last = number;
            order = (order ^ (number + 4ULL * seen)) * 1099511628211ULL;
        }
        total = seen + 1;
    }
}

int main() {
    std::thread threads[] = {std::thread(work, 0), std::thread(work, 1), std::thread(work, 2), std::thread(work, 3)};
    for (auto& thread : threads) thread.join();
    std::printf("%ld %016llx\n", 4L * ROUNDS - total, order);
}
