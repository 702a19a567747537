// Threads that are started once and wait for work.
//
// Reading guide
//   1. run      hands a part of the work to each thread, does part 0 itself, and returns when all are done
//   2. member   waits for the next round: WAITS times it only lets other threads pass (the next product often follows at
//               once), then it sleeps
//   3. team     the team of this process. It is never destroyed: its threads end with the process. A process that was
//               forked has none of its parent's threads, and makes its own.
#pragma once
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace {  // each library has its own: it may have been compiled otherwise

class Team {
    static constexpr int WAITS = 1000;
    std::mutex mutex;
    std::condition_variable begun;
    std::atomic<long> round{0};
    std::atomic<int> working{0};
    std::function<void(int)> work;

    void member(int number) {
        for (long done = 0;;) {
            for (int i = 0; i < WAITS && round == done; ++i) std::this_thread::yield();
            if (round == done) {
                std::unique_lock<std::mutex> lock(mutex);
                begun.wait(lock, [&] { return round != done; });
            }
            done = round;
            work(number);
            --working;
        }
    }

public:
    const int size;
    explicit Team(int threads) : size(threads) {
        for (int number = 1; number < size; ++number) std::thread(&Team::member, this, number).detach();
    }

    void run(std::function<void(int)> each) {
        work = std::move(each);
        working = size - 1;
        {
            std::lock_guard<std::mutex> lock(mutex);
            ++round;
        }
        begun.notify_all();
        work(0);
        while (working) std::this_thread::yield();
    }
};

Team &team(int threads) {
    static Team *one = nullptr;
    static pid_t owner = 0;
    if (!one || one->size != threads || owner != getpid()) one = new Team(threads), owner = getpid();
    return *one;
}

}  // namespace
