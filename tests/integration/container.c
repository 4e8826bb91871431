/* What of pyxis distperf uses, for tests: a task of srun sees a folder as its root, with the mounts that it was given.

   --container-image=DIR            the root; the system's own folders are put into it, for want of an image
   --container-mounts=FROM:TO[,..]  folders seen inside
   --container-writable             taken, and nothing more

   gcc -shared -fPIC -o container.so container.c            needs slurm/spank.h (Debian: libslurm-dev) */
#define _GNU_SOURCE
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(container, 1)

static const char *system_folders[] = {"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev", NULL};
static char *image, *mounts;

static int take(int which, const char *value, int remote) {
    (void)remote;
    if (which == 0) image = strdup(value);
    if (which == 1) mounts = strdup(value);
    return 0;
}

struct spank_option spank_options[] = {
    {"container-image", "DIR", "the root of tasks", 1, 0, take},
    {"container-mounts", "FROM:TO", "folders seen inside", 1, 1, take},
    {"container-writable", NULL, "nothing here", 0, 2, take},
    SPANK_OPTIONS_TABLE_END};

static int seen(const char *from, const char *to) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s", image, to);
    for (char *slash = strchr(path + strlen(image) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0755);
    if (mount(from, path, NULL, MS_BIND | MS_REC, NULL) == 0) return 0;
    slurm_error("container: cannot mount %s at %s: %m", from, path);
    return -1;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv) {
    (void)spank, (void)argc, (void)argv;
    if (image == NULL) return 0;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return -1;
    for (const char **folder = system_folders; *folder; folder++)
        if (seen(*folder, *folder)) return -1;
    for (char *pair = mounts ? strtok(mounts, ",") : NULL; pair; pair = strtok(NULL, ",")) {
        char *to = strchr(pair, ':');
        *to++ = 0;
        if (seen(pair, to)) return -1;
    }
    return chroot(image) || chdir("/") ? -1 : 0;
}
