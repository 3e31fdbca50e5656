import time, hashlib
h = hashlib.sha256()
for i in range(400):
    time.sleep(0.0005 + (i * 7919 % 13) * 0.0003)
    h.update(str(time.monotonic_ns()).encode())
print(0, h.hexdigest(), time.monotonic_ns())
