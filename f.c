#define _GNU_SOURCE
#include <sys/mman.h>
#include <stdio.h>
#include <time.h>
#include <string.h>
#include <stdint.h>
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
static double now(){struct timespec t;clock_gettime(CLOCK_THREAD_CPUTIME_ID,&t);return t.tv_sec*1e6+t.tv_nsec/1e3;}
int main(){ size_t n=32<<20; 
 char*p=mmap(0,n+(2<<20),PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
 p=(char*)(((uintptr_t)p+(2<<20)-1)&~(uintptr_t)((2<<20)-1));
 for(int mode=0;mode<3;mode++) for(int r=0;r<4;r++){
  if(mode==2) madvise(p,n,MADV_HUGEPAGE);
  double a=now();
  if(mode==1) madvise(p,n,MADV_POPULATE_WRITE);
  for(size_t i=0;i<n;i+=4096)p[i]=1;
  double b=now(); madvise(p,n,MADV_DONTNEED); double c=now();
  printf("mode %d fault %.3f us/page discard %.3f us/page (per 2MiB %.0f us)\n",mode,(b-a)/(n/4096),(c-b)/(n/4096),(b-a)/(n>>21));
 }
 madvise(p,n,MADV_NOHUGEPAGE);
 for(size_t i=0;i<n;i+=4096)p[i]=1;
 for(int r=0;r<4;r++){ double a=now(); madvise(p,n,MADV_FREE); double b=now(); for(size_t i=0;i<n;i+=4096)p[i]=1; double c=now(); printf("MADV_FREE %.3f rewrite %.3f us/page\n",(b-a)/(n/4096),(c-b)/(n/4096));}
}
